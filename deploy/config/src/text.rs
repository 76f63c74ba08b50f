//! Values that are a number or a short text in the file.

use std::fmt;

use serde::Deserializer;
use serde::de::{Error, Visitor};

/// A decimal number within a range, without sign or leading zeros: other readers of YAML take those for octal.
pub(crate) fn decimal(text: &str, min: u32, max: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text != "0" && text.starts_with('0')) {
        return None;
    }
    let number: u32 = text.parse().ok()?;
    (min..=max).contains(&number).then_some(number)
}

/// Reads a text, or a number as its text.
pub(crate) fn from_text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    parse: fn(&str) -> Option<T>,
) -> Result<T, D::Error> {
    struct Text;

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number or a text")
        }

        fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
            Ok(value.to_string())
        }

        fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
            Ok(value.to_owned())
        }
    }

    let text = deserializer.deserialize_any(Text)?;
    parse(&text).ok_or_else(|| Error::custom(format_args!("`{text}` is not allowed here")))
}
