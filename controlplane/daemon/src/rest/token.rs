//! The bearer token.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;

use super::Api;
use super::error::ApiError;

/// Shortest token that is accepted, bytes: one that could be guessed is none.
const SHORTEST: usize = 16;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error(
        "api.token_file {path}: {source}; make one with: (umask 077; head -c 32 /dev/urandom | base64 > {path})"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Everybody on this machine can read it.
    #[error("api.token_file {path}: mode {mode:03o} lets others read it; run: chmod o= {path}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The first line is empty or too short.
    #[error(
        "api.token_file {path}: the first line has {length} characters, at least {SHORTEST} are needed"
    )]
    Short {
        /// The file.
        path: PathBuf,
        /// Length found.
        length: usize,
    },
}

/// The token clients have to show.
#[derive(Debug)]
pub struct Token(SecretString);

impl Token {
    /// Reads the first line of a file.
    ///
    /// # Errors
    /// [`TokenError`], which says what to do.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |source| TokenError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let mode = std::fs::metadata(path).map_err(unreadable)?.mode() & 0o777;
        if mode & 0o007 != 0 {
            return Err(TokenError::Exposed {
                path: path.to_owned(),
                mode,
            });
        }
        let text = SecretString::from(std::fs::read_to_string(path).map_err(unreadable)?);
        let line = text.expose_secret().lines().next().unwrap_or("").trim();
        if line.len() < SHORTEST {
            return Err(TokenError::Short {
                path: path.to_owned(),
                length: line.len(),
            });
        }
        Ok(Self(SecretString::from(line)))
    }

    /// Whether somebody has shown this token; takes as long whichever byte is wrong.
    fn is(&self, shown: &[u8]) -> bool {
        bool::from(self.0.expose_secret().as_bytes().ct_eq(shown))
    }
}

/// Lets a request through that has the token.
pub(super) async fn require(
    State(api): State<Api>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let shown = request.headers().get(header::AUTHORIZATION);
    let shown = shown.and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
    });
    match shown {
        Some(token) if api.in_force.token().is(token) => Ok(next.run(request).await),
        _ => Err(ApiError::Unauthorized),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct File(PathBuf);

    impl File {
        fn new(name: &str, text: &str, mode: u32) -> Self {
            let name = format!("ctl-token-{}-{name}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Self(path)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn the_first_line_is_the_token() {
        let file = File::new("good", "0123456789abcdef\nmore\n", 0o640);
        let token = Token::read(&file.0).unwrap();
        assert!(token.is(b"0123456789abcdef"));
        assert!(!token.is(b"0123456789abcdeX"));
        assert!(!token.is(b"0123456789abcde"));
        assert!(!token.is(b""));
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_missing_exposed_or_empty_file_is_an_error_that_says_what_to_do() {
        let missing = Token::read(Path::new("/nonexistent/token")).unwrap_err();
        assert!(missing.to_string().contains("make one with"), "{missing}");
        let file = File::new("exposed", "0123456789abcdef\n", 0o644);
        let exposed = Token::read(&file.0).unwrap_err().to_string();
        assert!(exposed.contains("mode 644"), "{exposed}");
        let file = File::new("empty", "\n0123456789abcdef\n", 0o600);
        let short = Token::read(&file.0).unwrap_err().to_string();
        assert!(short.contains("has 0 characters"), "{short}");
    }
}
