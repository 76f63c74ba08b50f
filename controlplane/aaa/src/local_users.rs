//! Users from the configuration.

use std::collections::HashMap;

use secrecy::{ExposeSecret, SecretString};
use subtle::{Choice, ConstantTimeEq};

use crate::authenticator::{Credentials, RejectCause, Verdict};
use crate::profile::Profile;
use crate::radius::packet::chap_response;

/// Names and passwords longer than a PAP length octet can say match nothing.
const LONGEST: usize = 255;

/// The users of the configuration, and the one check against them.
///
/// The check compares names, passwords and CHAP responses as whole byte strings in a time that depends neither on where they
/// differ, nor on their lengths, nor on whether the user exists: an unknown name is compared with a user nobody can be. Only the
/// MD5 of CHAP takes a block longer for each 64 octets of the user's password, and an unknown user's is empty.
#[derive(Debug)]
pub struct LocalUsers {
    users: HashMap<Vec<u8>, User>,
    nobody: User,
}

#[derive(Debug)]
struct User {
    name: Vec<u8>,
    password: SecretString,
    /// `None` for the terms of nearly everybody, none.
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

    /// Whether these credentials belong to this name. An empty password is wrong unless the user's password is empty.
    pub fn verify(&self, name: &[u8], credentials: &Credentials) -> Verdict {
        // The map's hash is keyed at random, so the time of the look-up says nothing about names that are near.
        let found = self.users.get(name);
        let known = Choice::from(u8::from(found.is_some()));
        let user = found.unwrap_or(&self.nobody);
        let same_name = equal(&user.name, name);
        let secret = user.password.expose_secret().as_bytes();
        let is_proved = match credentials {
            Credentials::Pap { password } => equal(secret, password),
            Credentials::ChapMd5 {
                identifier,
                challenge,
                response,
            } => chap_response(*identifier, secret, challenge).ct_eq(response),
        };
        if bool::from(known & same_name & is_proved) {
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
        let user =
            |name: &str, password: &str| (name.to_owned(), password.into(), Profile::default());
        LocalUsers::new([
            user("alice", "secret"),
            user("open", ""),
            user("long", &long),
        ])
    }

    fn pap(password: &[u8]) -> Credentials {
        Credentials::Pap {
            password: password.to_vec(),
        }
    }

    #[test]
    fn a_chap_response_counts_for_its_identifier_challenge_and_password() {
        let users = users();
        let answer = |identifier, challenge: [u8; 16], password: &[u8]| Credentials::ChapMd5 {
            identifier,
            challenge: [7; 16],
            response: chap_response(identifier, password, &challenge),
        };
        let right = answer(3, [7; 16], b"secret");
        assert_eq!(
            users.verify(b"alice", &right),
            Verdict::Accept(Box::default())
        );
        assert_eq!(
            users.verify(b"alice", &answer(3, [8; 16], b"secret")),
            WRONG
        );
        assert_eq!(users.verify(b"alice", &answer(3, [7; 16], b"secre")), WRONG);
        assert_eq!(users.verify(b"long", &right), WRONG);
        let Credentials::ChapMd5 { response, .. } = right else {
            panic!("CHAP")
        };
        let other_identifier = Credentials::ChapMd5 {
            identifier: 4,
            challenge: [7; 16],
            response,
        };
        assert_eq!(users.verify(b"alice", &other_identifier), WRONG);
        let unknown = Verdict::Reject(RejectCause::UnknownUser);
        assert_eq!(users.verify(b"bob", &answer(3, [7; 16], b"")), unknown);
        let open = answer(3, [7; 16], b"");
        assert_eq!(
            users.verify(b"open", &open),
            Verdict::Accept(Box::default())
        );
    }

    #[test]
    fn a_user_has_the_terms_of_its_own() {
        let profile = Profile {
            filter_id: Some("gold".to_owned()),
            ..Profile::default()
        };
        let users = LocalUsers::new([("alice".to_owned(), "secret".into(), profile.clone())]);
        let verdict = users.verify(b"alice", &pap(b"secret"));
        assert_eq!(verdict, Verdict::Accept(Box::new(profile)));
    }

    #[test]
    fn password_counts_whole() {
        let users = users();
        assert_eq!(
            users.verify(b"alice", &pap(b"secret")),
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
            assert_eq!(users.verify(b"alice", &pap(wrong)), WRONG, "{wrong:?}");
        }
    }

    #[test]
    fn empty_password_is_right_only_where_configured() {
        assert_eq!(
            users().verify(b"open", &pap(b"")),
            Verdict::Accept(Box::default())
        );
        assert_eq!(users().verify(b"open", &pap(b"\0")), WRONG);
        assert_eq!(users().verify(b"alice", &pap(b"")), WRONG);
    }

    #[test]
    fn unknown_name_is_refused_even_with_nothing_to_compare() {
        for name in [&b""[..], b"bob", b"alice\0", b"alic", b"\xff\xfe"] {
            let verdict = users().verify(name, &pap(b""));
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
            users.verify(b"long", &pap(&password[..255])),
            Verdict::Accept(Box::default())
        );
        assert_eq!(users.verify(b"long", &pap(&password)), WRONG);
        password[254] = b'q';
        assert_eq!(users.verify(b"long", &pap(&password[..255])), WRONG);
    }
}
