//! One way to ask whether a subscriber may come in, whoever knows the answer.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::accounting::Line;
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
    /// Where it is.
    pub line: Line,
    /// Service-Name it asked for; empty for any.
    pub service_name: Vec<u8>,
    /// The session's accounting id, 0 while it has none.
    pub accounting_id: u64,
    /// The address its session has already.
    pub framed_ip: Option<Ipv4Addr>,
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

/// Who knows subscribers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The users of the configuration.
    Local,
    /// RADIUS servers, see [`crate::radius`].
    Radius,
}

/// Answers authentication requests.
///
/// [`Authenticator::handle_request`] puts a question, [`Authenticator::poll_verdict`] yields answers in the order they became
/// known, which need not be the order of the questions: local users answer at once, a server elsewhere later. What is for a
/// server comes out of [`Authenticator::poll_question`], and its verdict goes into [`Authenticator::handle_verdict`]. After each
/// `handle_*` call, poll both until `None`.
///
/// Backends are asked in their order. The next one is asked when one does not know: local users have no such name, or no
/// server answers. A server that refuses knows.
#[derive(Debug)]
pub struct Authenticator {
    local: LocalUsers,
    backends: Arc<[Backend]>,
    /// Questions that servers decide on, and who is asked after them.
    open: HashMap<RequestId, Open>,
    questions: VecDeque<AuthRequest>,
    verdicts: VecDeque<(RequestId, Verdict)>,
}

#[derive(Debug)]
struct Open {
    /// Kept while somebody may be asked after the servers.
    request: Option<AuthRequest>,
    /// Those that were to be asked when the question came, and which of them is the next.
    backends: Arc<[Backend]>,
    next: usize,
}

impl Authenticator {
    /// An authenticator that asks `backends` in this order. None of them: nobody is known.
    pub fn new(local: LocalUsers, backends: Vec<Backend>) -> Self {
        Self {
            local,
            backends: backends.into(),
            open: HashMap::new(),
            questions: VecDeque::new(),
            verdicts: VecDeque::new(),
        }
    }

    /// Knows other local users from now on.
    pub fn set_users(&mut self, local: LocalUsers) {
        self.local = local;
    }

    /// Asks these from the next question on.
    pub fn set_backends(&mut self, backends: Vec<Backend>) {
        self.backends = backends.into();
    }

    /// Takes a question. Its verdict comes from [`Authenticator::poll_verdict`] exactly once.
    pub fn handle_request(&mut self, request: AuthRequest) {
        let backends = self.backends.clone();
        self.ask(request, backends, 0, RejectCause::UnknownUser);
    }

    /// Takes the verdict of a server. One that nobody waits for has no effect.
    pub fn handle_verdict(&mut self, id: RequestId, verdict: Verdict) {
        let Some(open) = self.open.remove(&id) else {
            return;
        };
        match (verdict, open.request) {
            (Verdict::Reject(cause @ RejectCause::ServersSilent), Some(request)) => {
                self.ask(request, open.backends, open.next, cause);
            }
            (verdict, _) => self.verdicts.push_back((id, verdict)),
        }
    }

    /// Asks from the backend at `first` on; `unknown` is the verdict if none of them knows.
    fn ask(
        &mut self,
        request: AuthRequest,
        backends: Arc<[Backend]>,
        first: usize,
        mut unknown: RejectCause,
    ) {
        let id = request.id;
        for (index, backend) in backends.iter().enumerate().skip(first) {
            match backend {
                Backend::Local => match self.local.verify(&request.peer_id, &request.credentials) {
                    Verdict::Reject(RejectCause::UnknownUser) => {
                        // Silent servers may have known it.
                        if unknown != RejectCause::ServersSilent {
                            unknown = RejectCause::UnknownUser;
                        }
                    }
                    verdict => return self.verdicts.push_back((id, verdict)),
                },
                Backend::Radius => {
                    let next = index + 1;
                    let is_last = next >= backends.len();
                    let request_after = (!is_last).then(|| request.clone());
                    let open = Open {
                        request: request_after,
                        backends: backends.clone(),
                        next,
                    };
                    self.open.insert(id, open);
                    return self.questions.push_back(request);
                }
            }
        }
        self.verdicts.push_back((id, Verdict::Reject(unknown)));
    }

    /// The next question for a server.
    pub fn poll_question(&mut self) -> Option<AuthRequest> {
        self.questions.pop_front()
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
            line: Line::default(),
            service_name: Vec::new(),
            accounting_id: 0,
            framed_ip: None,
        }
    }

    fn users() -> LocalUsers {
        LocalUsers::new([("alice".to_owned(), "hunter2".into(), Profile::default())])
    }

    fn verdicts(authenticator: &mut Authenticator) -> Vec<(u64, Verdict)> {
        std::iter::from_fn(|| authenticator.poll_verdict())
            .map(|(id, verdict)| (id.0, verdict))
            .collect()
    }

    const UNKNOWN: Verdict = Verdict::Reject(RejectCause::UnknownUser);
    const WRONG: Verdict = Verdict::Reject(RejectCause::WrongPassword);
    const SILENT: Verdict = Verdict::Reject(RejectCause::ServersSilent);

    fn accept() -> Verdict {
        Verdict::Accept(Box::default())
    }

    #[test]
    fn every_request_gets_its_own_verdict_once() {
        let mut authenticator = Authenticator::new(users(), vec![Backend::Local]);
        authenticator.handle_request(request(1, "alice", "hunter2"));
        authenticator.handle_request(request(2, "alice", "wrong"));
        authenticator.handle_request(request(3, "bob", "hunter2"));
        let expected = [(1, accept()), (2, WRONG), (3, UNKNOWN)];
        assert_eq!(verdicts(&mut authenticator), expected);
        assert!(authenticator.poll_question().is_none());
        let mut nobody = Authenticator::new(users(), Vec::new());
        nobody.handle_request(request(1, "alice", "hunter2"));
        assert_eq!(verdicts(&mut nobody), [(1, UNKNOWN)]);
    }

    #[test]
    fn other_backends_are_asked_from_the_next_question_on() {
        let mut authenticator = Authenticator::new(users(), vec![Backend::Radius, Backend::Local]);
        authenticator.handle_request(request(1, "alice", "hunter2"));
        assert!(authenticator.poll_question().is_some());
        authenticator.set_backends(vec![Backend::Radius]);
        authenticator.handle_request(request(2, "alice", "hunter2"));
        assert!(authenticator.poll_question().is_some());
        let silent = Verdict::Reject(RejectCause::ServersSilent);
        authenticator.handle_verdict(RequestId(1), silent.clone());
        authenticator.handle_verdict(RequestId(2), silent.clone());
        let found = verdicts(&mut authenticator);
        assert!(matches!(&found[0], (1, Verdict::Accept(_))), "{found:?}");
        assert_eq!(found[1], (2, silent));
    }

    #[test]
    fn servers_are_asked_about_users_that_local_ones_do_not_know_and_only_about_them() {
        let backends = vec![Backend::Local, Backend::Radius];
        let mut authenticator = Authenticator::new(users(), backends);
        authenticator.handle_request(request(1, "alice", "wrong"));
        authenticator.handle_request(request(2, "bob", "b"));
        assert_eq!(verdicts(&mut authenticator), [(1, WRONG)]);
        assert_eq!(authenticator.poll_question().unwrap().id, RequestId(2));
        assert!(authenticator.poll_question().is_none());
        authenticator.handle_verdict(RequestId(2), SILENT);
        authenticator.handle_verdict(RequestId(2), accept());
        authenticator.handle_verdict(RequestId(9), accept());
        assert_eq!(verdicts(&mut authenticator), [(2, SILENT)]);
    }

    #[test]
    fn local_users_stand_in_for_silent_servers_but_never_for_a_reject() {
        let backends = vec![Backend::Radius, Backend::Local];
        let mut authenticator = Authenticator::new(users(), backends);
        for id in 1..=3 {
            let name = if id == 3 { "bob" } else { "alice" };
            authenticator.handle_request(request(id, name, "hunter2"));
            assert_eq!(authenticator.poll_question().unwrap().id, RequestId(id));
        }
        let rejected = Verdict::Reject(RejectCause::ServerRejected);
        authenticator.handle_verdict(RequestId(1), SILENT);
        authenticator.handle_verdict(RequestId(2), rejected.clone());
        authenticator.handle_verdict(RequestId(3), SILENT);
        let expected = [(1, accept()), (2, rejected), (3, SILENT)];
        assert_eq!(verdicts(&mut authenticator), expected);
    }

    #[test]
    fn debug_output_hides_passwords() {
        let shown = format!(
            "{:?} {:?}",
            request(1, "alice", "hunter2"),
            Authenticator::new(users(), vec![Backend::Local])
        );
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!shown.contains("104, 117"), "{shown}");
    }
}
