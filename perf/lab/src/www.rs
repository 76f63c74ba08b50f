//! The internet host of the lab: a small HTTP server with a page and a stream of known content.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{ChildStdin, Command, Stdio};
use std::thread;

use crate::error::{Context, LabError, Result};

/// Title of the page at `/`.
pub const TITLE: &str = "Hello from the other side of the gateway";

/// Octets written at once.
const CHUNK: usize = 64 * 1024;

/// Serves `/` (a page with [`TITLE`]) and `/bytes/N` (the first N octets of [`Stream`]), and answers what is put at
/// `/sha256` with its SHA-256 in hexadecimal, until the process ends. Prints one line on standard error when it listens.
/// Every request is one connection.
///
/// # Errors
/// When the address cannot be bound.
pub fn serve(listen: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(listen).context(|| format!("listen on {listen}"))?;
    eprintln!("www: listening on {listen}");
    for connection in listener.incoming() {
        match connection {
            Ok(connection) => {
                thread::spawn(move || {
                    if let Err(error) = answer(connection) {
                        eprintln!("www: {error}");
                    }
                });
            }
            Err(error) => eprintln!("www: accept: {error}"),
        }
    }
    Ok(())
}

fn answer(connection: TcpStream) -> io::Result<()> {
    let peer = connection.peer_addr()?;
    let mut reader = BufReader::new(connection);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    let mut length = 0;
    let mut expects = false;
    while reader.read_line(&mut header)? > 2 {
        header.make_ascii_lowercase();
        match header.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(("expect", "100-continue")) => expects = true,
            _ => {}
        }
        header.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or("");
    eprintln!("www: {peer} asks for {path}");
    if request.starts_with("PUT /sha256 ") {
        if expects {
            reader
                .get_mut()
                .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let sum = sha256(|input| io::copy(&mut reader.by_ref().take(length), input).map(drop))
            .map_err(io::Error::other)?;
        return write!(
            reader.into_inner(),
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{sum}",
            sum.len()
        );
    }
    let mut out = reader.into_inner();
    if path == "/" {
        let page = format!(
            "<!doctype html>\n<html><head><title>{TITLE}</title></head>\n<body><p>You came as {peer}.</p></body></html>\n"
        );
        write!(
            out,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
            page.len()
        )?;
        return out.flush();
    }
    let Some(count) = path
        .strip_prefix("/bytes/")
        .and_then(|count| count.parse().ok())
    else {
        return write!(
            out,
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    };
    write!(
        out,
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {count}\r\nConnection: close\r\n\r\n"
    )?;
    write_stream(&mut out, count)
}

fn write_stream(out: &mut impl Write, mut count: u64) -> io::Result<()> {
    let mut stream = Stream::default();
    let mut chunk = vec![0u8; CHUNK];
    while count > 0 {
        let length = usize::try_from(count).map_or(CHUNK, |left| left.min(CHUNK));
        stream.fill(&mut chunk);
        out.write_all(&chunk[..length])?;
        count -= length as u64;
    }
    out.flush()
}

/// SHA-256 of the first `count` octets of the stream, in hexadecimal, computed by `sha256sum`: not by the same code that
/// serves it.
///
/// # Errors
/// When `sha256sum` cannot be run.
pub fn stream_sha256(count: u64) -> Result<String> {
    sha256(|input| write_stream(input, count))
}

/// SHA-256 of what `write` writes, by `sha256sum`.
fn sha256(write: impl FnOnce(&mut ChildStdin) -> io::Result<()>) -> Result<String> {
    let mut child = Command::new("sha256sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "run sha256sum".to_owned())?;
    if let Some(mut input) = child.stdin.take() {
        write(&mut input).context(|| "write to sha256sum".to_owned())?;
    }
    let output = child
        .wait_with_output()
        .context(|| "run sha256sum".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.split_ascii_whitespace().next() {
        Some(sum) if sum.len() == 64 => Ok(sum.to_owned()),
        _ => Err(LabError::Unreadable {
            what: "the output of sha256sum".to_owned(),
            text,
        }),
    }
}

/// A stream of octets that looks random, so that a lost, doubled or swapped segment cannot go unseen: xorshift64 (Marsaglia).
#[derive(Debug)]
pub struct Stream {
    state: u64,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }
}

impl Stream {
    /// The next octets. The length must be a multiple of 8, or the rest of the last word is lost.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            word.copy_from_slice(&self.state.to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn fetch(path: &str) -> Vec<u8> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0).unwrap());
        let mut client = TcpStream::connect(address).unwrap();
        write!(client, "GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n").unwrap();
        let mut whole = Vec::new();
        client.read_to_end(&mut whole).unwrap();
        server.join().unwrap();
        whole
    }

    #[test]
    fn page_has_its_title() {
        let text = String::from_utf8(fetch("/")).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains(TITLE), "{text}");
    }

    #[test]
    fn unknown_path_is_not_found() {
        assert!(fetch("/bytes/many").starts_with(b"HTTP/1.1 404 "));
    }

    #[test]
    fn stream_has_exactly_the_length_asked_for_and_the_same_content_every_time() {
        let count = 3 * CHUNK + 5;
        let whole = fetch(&format!("/bytes/{count}"));
        let body = &whole[whole.len() - count..];
        assert!(whole[..whole.len() - count].ends_with(b"\r\n\r\n"));
        let mut expected = Vec::new();
        write_stream(&mut expected, count as u64).unwrap();
        assert_eq!(body, expected);
        assert_ne!(body[..8], body[8..16]);
    }

    #[test]
    fn what_is_put_is_answered_with_its_checksum() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || answer(listener.accept().unwrap().0).unwrap());
        let mut client = TcpStream::connect(address).unwrap();
        let count = CHUNK + 5;
        write!(
            client,
            "PUT /sha256 HTTP/1.1\r\nContent-Length: {count}\r\n\r\n"
        )
        .unwrap();
        write_stream(&mut client, count as u64).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        server.join().unwrap();
        assert!(
            text.ends_with(&stream_sha256(count as u64).unwrap()),
            "{text}"
        );
    }

    #[test]
    fn checksum_is_that_of_sha256sum() {
        // SHA-256 of nothing, FIPS 180-4.
        assert_eq!(
            stream_sha256(0).unwrap(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
        assert_ne!(stream_sha256(1).unwrap(), stream_sha256(2).unwrap());
    }
}
