//! One way to ask whether a subscriber may come in, whoever knows the answer.

use std::collections::VecDeque;
use std::fmt;

use crate::local_users::LocalUsers;
use crate::profile::Profile;

/// Names a request, so that its verdict finds the session that asked. Chosen by the caller, unique among open requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One authentication attempt of a peer.
#[derive(Clone, Debug)]
pub struct AuthRequest {
    /// Returned with the verdict.
    pub id: RequestId,
    /// The name the peer gave (Peer-ID of PAP), as bytes.
    pub peer_id: Vec<u8>,
    /// What it proves the name with.
    pub credentials: Credentials,
}

/// Proof of identity, one variant per authentication protocol.
#[derive(Clone)]
#[non_exhaustive]
pub enum Credentials {
    /// The password of a PAP Authenticate-Request (RFC 1334 section 2.2.1), as bytes.
    Pap {
        /// At most 255 bytes can match.
        password: Vec<u8>,
    },
    /// A CHAP Response with MD5 (RFC 1994 section 4.1).
    ChapMd5 {
        /// Identifier of the challenge.
        identifier: u8,
        /// The challenge.
        challenge: [u8; 16],
        /// The peer's response.
        response: [u8; 16],
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pap { .. } => f.write_str("Pap { password: [hidden] }"),
            Self::ChapMd5 { .. } => f.write_str("ChapMd5 { response: [hidden] }"),
        }
    }
}

/// The answer to an [`AuthRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The peer is who it says, and these are the terms of its session.
    Accept(Box<Profile>),
    /// It is not. The peer is told no more than that; the cause is for counters and logs.
    Reject(RejectCause),
}

/// Why a peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectCause {
    /// Nobody has this name.
    UnknownUser,
    /// The name exists, the password is another one.
    WrongPassword,
    /// A server refused it, for whatever reason.
    ServerRejected,
    /// No server answered.
    ServersSilent,
    /// A server accepted it on terms that cannot be met (an attribute of the reply is malformed or contradicts another).
    TermsUnusable,
}

impl RejectCause {
    /// Label for counters and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UnknownUser => "unknown_user",
            Self::WrongPassword => "wrong_password",
            Self::ServerRejected => "server_rejected",
            Self::ServersSilent => "servers_silent",
            Self::TermsUnusable => "terms_unusable",
        }
    }
}

/// Answers authentication requests.
///
/// [`Authenticator::handle_request`] puts a question, [`Authenticator::poll_verdict`] yields answers in the order they became
/// known, which need not be the order of the questions: local users answer at once, a server elsewhere later. After each
/// `handle_*` call, poll until `None`.
#[derive(Debug)]
pub struct Authenticator {
    local: LocalUsers,
    verdicts: VecDeque<(RequestId, Verdict)>,
}

impl Authenticator {
    /// An authenticator that knows these users.
    pub fn new(local: LocalUsers) -> Self {
        Self {
            local,
            verdicts: VecDeque::new(),
        }
    }

    /// Takes a question. Its verdict comes from [`Authenticator::poll_verdict`] exactly once.
    pub fn handle_request(&mut self, request: AuthRequest) {
        let verdict = match &request.credentials {
            Credentials::Pap { password } => self.local.verify(&request.peer_id, password),
            Credentials::ChapMd5 { .. } => Verdict::Reject(RejectCause::WrongPassword),
        };
        self.verdicts.push_back((request.id, verdict));
    }

    /// The next answer that is known.
    pub fn poll_verdict(&mut self) -> Option<(RequestId, Verdict)> {
        self.verdicts.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(id: u64, name: &str, password: &str) -> AuthRequest {
        AuthRequest {
            id: RequestId(id),
            peer_id: name.into(),
            credentials: Credentials::Pap {
                password: password.into(),
            },
        }
    }

    #[test]
    fn every_request_gets_its_own_verdict_once() {
        let users = LocalUsers::new([("alice".to_owned(), "secret".into(), Profile::default())]);
        let mut authenticator = Authenticator::new(users);
        authenticator.handle_request(request(1, "alice", "secret"));
        authenticator.handle_request(request(2, "alice", "wrong"));
        authenticator.handle_request(request(3, "bob", "secret"));
        let verdicts: Vec<_> = std::iter::from_fn(|| authenticator.poll_verdict()).collect();
        let expected = [
            (RequestId(1), Verdict::Accept(Box::default())),
            (RequestId(2), Verdict::Reject(RejectCause::WrongPassword)),
            (RequestId(3), Verdict::Reject(RejectCause::UnknownUser)),
        ];
        assert_eq!(verdicts, expected);
    }

    #[test]
    fn debug_output_hides_passwords() {
        let users = LocalUsers::new([("alice".to_owned(), "hunter2".into(), Profile::default())]);
        let shown = format!(
            "{:?} {:?}",
            request(1, "alice", "hunter2"),
            Authenticator::new(users)
        );
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains("104, 117"), "{shown}");
    }
}
