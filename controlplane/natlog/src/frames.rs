//! Records in files that only grow: each has its length and its sum before it, so a crash leaves nothing that is half believed.
//!
//! ```text
//! length of the body, 4, big-endian | SipHash-1-3 of the body, 8, big-endian | body
//! ```
//!
//! Nothing here panics, whatever the bytes.

use std::fs::{self, File, OpenOptions};
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip::SipHasher13;

/// Length and sum before each body, bytes.
pub const HEAD: usize = 12;

/// The path of a segment.
#[must_use]
pub fn path_of(directory: &Path, segment: u64) -> PathBuf {
    directory.join(format!("{segment:010}.log"))
}

/// Opens a segment for reading and writing; an empty one if there is none.
///
/// # Errors
/// Those of the file system.
pub fn open_segment(directory: &Path, segment: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).open(path_of(directory, segment))
}

/// Makes the directory, for its owner alone, if there is none, and lists the numbers of the segments in it.
///
/// # Errors
/// Those of the file system.
pub fn segments(directory: &Path) -> io::Result<Vec<u64>> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_str().and_then(|it| it.strip_suffix(".log"));
        numbers.extend(name.and_then(|it| it.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes names of files in a directory durable.
///
/// # Errors
/// Those of the file system.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn sum(body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(body);
    hasher.finish()
}

/// Adds a record to a batch. Bodies are far shorter than 4 GiB.
pub fn put(batch: &mut Vec<u8>, body: &[u8]) {
    batch.extend_from_slice(&(body.len() as u32).to_be_bytes());
    batch.extend_from_slice(&sum(body).to_be_bytes());
    batch.extend_from_slice(body);
}

/// The body of the record at `at`, of at most `longest` bytes; `None` at the end and where no whole one is.
#[must_use]
pub fn body_at(bytes: &[u8], at: usize, longest: usize) -> Option<&[u8]> {
    let (length, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
    let (expected, rest) = rest.split_first_chunk::<8>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let body = rest.get(..length).filter(|_| length <= longest)?;
    (sum(body) == u64::from_be_bytes(*expected)).then_some(body)
}

/// The next whole record at or after `from`, and where it begins. One whose length is damaged says nothing of where the next one
/// is, so it is looked for at every byte; there `is_ours` says what is a body.
#[must_use]
pub fn next_body(
    bytes: &[u8],
    from: usize,
    longest: usize,
    is_ours: impl Fn(&[u8]) -> bool,
) -> Option<(usize, &[u8])> {
    if let Some(body) = body_at(bytes, from, longest) {
        return Some((from, body));
    }
    let mut later = from + 1..bytes.len();
    later.find_map(|at| {
        let body = body_at(bytes, at, longest)?;
        is_ours(body).then_some((at, body))
    })
}
