//! Users from the configuration.

use std::collections::HashMap;

use secrecy::{ExposeSecret, SecretString};
use subtle::{Choice, ConstantTimeEq};

use crate::authenticator::{RejectCause, Verdict};
use crate::profile::Profile;

/// Names and passwords longer than a PAP length octet can say match nothing.
const LONGEST: usize = 255;

/// The users of the configuration, and the one check against them.
///
/// The check compares names and passwords as whole byte strings in a time that depends neither on where they differ, nor on
/// their lengths, nor on whether the user exists: an unknown name is compared with a user nobody can be.
#[derive(Debug)]
pub struct LocalUsers {
    users: HashMap<Vec<u8>, User>,
    nobody: User,
}

#[derive(Debug)]
struct User {
    name: Vec<u8>,
    password: SecretString,
    /// The terms of its sessions; most have none of their own.
    profile: Option<Box<Profile>>,
}

impl LocalUsers {
    /// Takes the users, with the terms of their sessions. Of two with the same name the later counts; the configuration
    /// refuses that before.
    pub fn new(users: impl IntoIterator<Item = (String, SecretString, Profile)>) -> Self {
        let users = users.into_iter().map(|(name, password, profile)| {
            let name = name.into_bytes();
            let user = User {
                name: name.clone(),
                password,
                profile: (profile != Profile::default()).then(|| Box::new(profile)),
            };
            (name, user)
        });
        Self {
            users: users.collect(),
            nobody: User {
                name: Vec::new(),
                password: SecretString::from(""),
                profile: None,
            },
        }
    }

    /// How many users there are.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there is no user.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// Whether this password belongs to this name. An empty password is wrong unless the user's password is empty.
    pub fn verify(&self, name: &[u8], password: &[u8]) -> Verdict {
        // The map's hash is keyed at random, so the time of the look-up says nothing about names that are near.
        let found = self.users.get(name);
        let known = Choice::from(u8::from(found.is_some()));
        let user = found.unwrap_or(&self.nobody);
        let same_name = equal(&user.name, name);
        let same_password = equal(user.password.expose_secret().as_bytes(), password);
        if bool::from(known & same_name & same_password) {
            Verdict::Accept(user.profile.clone().unwrap_or_default())
        } else if bool::from(known) {
            Verdict::Reject(RejectCause::WrongPassword)
        } else {
            Verdict::Reject(RejectCause::UnknownUser)
        }
    }
}

/// Whether two strings are the same, always at the cost of the longest strings there are.
fn equal(one: &[u8], two: &[u8]) -> Choice {
    let fits = one.len() <= LONGEST && two.len() <= LONGEST;
    padded(one).ct_eq(&padded(two)) & one.len().ct_eq(&two.len()) & Choice::from(u8::from(fits))
}

fn padded(text: &[u8]) -> [u8; LONGEST] {
    let mut out = [0; LONGEST];
    for (to, from) in out.iter_mut().zip(text) {
        *to = *from;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRONG: Verdict = Verdict::Reject(RejectCause::WrongPassword);

    fn users() -> LocalUsers {
        let long = "p".repeat(255);
        LocalUsers::new([
            ("alice".to_owned(), "secret".into(), Profile::default()),
            ("open".to_owned(), "".into(), Profile::default()),
            ("long".to_owned(), long.into(), Profile::default()),
        ])
    }

    #[test]
    fn password_counts_whole() {
        let users = users();
        assert_eq!(
            users.verify(b"alice", b"secret"),
            Verdict::Accept(Box::default())
        );
        for wrong in [
            &b"secre"[..],
            b"secret1",
            b"secret\0",
            b"Secret",
            b"",
            b"\0",
        ] {
            assert_eq!(users.verify(b"alice", wrong), WRONG, "{wrong:?}");
        }
    }

    #[test]
    fn the_terms_of_the_user_come_with_the_verdict() {
        let profile = Profile {
            framed_pool: Some("office".to_owned()),
            ..Profile::default()
        };
        let users = LocalUsers::new([("bob".to_owned(), "b".into(), profile.clone())]);
        assert_eq!(
            users.verify(b"bob", b"b"),
            Verdict::Accept(Box::new(profile))
        );
    }

    #[test]
    fn empty_password_is_right_only_where_configured() {
        assert_eq!(
            users().verify(b"open", b""),
            Verdict::Accept(Box::default())
        );
        assert_eq!(users().verify(b"open", b"\0"), WRONG);
        assert_eq!(users().verify(b"alice", b""), WRONG);
    }

    #[test]
    fn unknown_name_is_refused_even_with_nothing_to_compare() {
        for name in [&b""[..], b"bob", b"alice\0", b"alic", b"\xff\xfe"] {
            let verdict = users().verify(name, b"");
            assert_eq!(
                verdict,
                Verdict::Reject(RejectCause::UnknownUser),
                "{name:?}"
            );
        }
    }

    #[test]
    fn longest_password_is_compared_to_its_end_and_longer_ones_never_match() {
        let users = users();
        let mut password = [b'p'; 256];
        assert_eq!(
            users.verify(b"long", &password[..255]),
            Verdict::Accept(Box::default())
        );
        assert_eq!(users.verify(b"long", &password), WRONG);
        password[254] = b'q';
        assert_eq!(users.verify(b"long", &password[..255]), WRONG);
    }
}
