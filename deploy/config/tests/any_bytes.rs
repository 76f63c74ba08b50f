//! Whatever is in the file, reading it ends with a configuration or one line of error.
// Helpers of tests are tests too, but clippy sees only functions marked as such.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;

use bng_config::Config;
use proptest::prelude::*;

const SAMPLE: &str = include_str!("../../ironbng.yaml");

fn read(bytes: &[u8]) {
    if let Err(error) = Config::parse(bytes, Path::new("t.yaml")) {
        let line = error.to_string();
        assert!(!line.contains(['\n', '\r']), "more than one line: {line:?}");
        assert!(line.starts_with("t.yaml:"), "{line:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read(&bytes);
    }

    #[test]
    fn any_yaml_like_text_is_read_without_panic(text in r##"([a-z]{1,3}|[ \n\-:\[\]{},&*!|>'"#?\t]|\n  - |: ){0,120}"##) {
        read(text.as_bytes());
    }

    #[test]
    fn a_damaged_sample_is_read_without_panic(at in 0..SAMPLE.len(), remove in 0usize..40, insert in prop::collection::vec(any::<u8>(), 0..6)) {
        let mut bytes = SAMPLE.as_bytes().to_vec();
        let end = bytes.len().min(at + remove);
        bytes.splice(at..end, insert);
        read(&bytes);
    }
}
