//! What the grid runs: a list of calls of `bng-perf fastpath`.

/// Sizes of the IP packets: as small as a VPP test frame of 60 bytes, and as large as PPPoE carries.
pub(super) const SMALL: u32 = 40;
pub(super) const LARGE: u32 = 1_492;
/// Sessions and flows.
pub(super) const SHAPES: [(u32, u32); 4] = [
    (1_000, 1_000),
    (1_000, 65_536),
    (10_000, 65_536),
    (64_000, 1_000_000),
];
/// The largest shape, that most targets are about.
pub(super) const FULL: (u32, u32) = SHAPES[3];
/// The shape of the lock tables.
pub(super) const LOCKS: (u32, u32) = SHAPES[1];

/// Sessions and flows of the cells about coalescing: as many flows as a run table holds runs.
pub(super) const TRAINS: (u32, u32) = (64, 64);

/// One call: its arguments behind `bng-perf fastpath`.
pub(super) struct Cell(pub(super) String);

fn cell((sessions, flows): (u32, u32), ip_bytes: u32, rest: &str) -> Cell {
    Cell(format!(
        "--sessions {sessions} --flows {flows} --ip-bytes {ip_bytes} {rest}"
    ))
}

/// The cells for a machine with `cores` usable ones.
pub(super) fn cells(cores: usize, quick: bool) -> Vec<Cell> {
    let mut cells = Vec::new();
    for shape in SHAPES {
        // The small quick grid leaves out what no target is about.
        if !quick || shape != LOCKS {
            cells.push(cell(shape, LARGE, "--direction both"));
        }
        if !quick || shape == SHAPES[2] {
            cells.push(cell(shape, SMALL, "--direction both"));
        }
        if !quick {
            cells.push(cell(shape, LARGE, "--direction both --features minimal"));
        }
    }
    cells.push(cell(FULL, LARGE, "--direction both --copy both"));
    cells.push(cell(FULL, LARGE, "--direction both --plain-ip"));
    cells.push(cell(FULL, LARGE, "--direction up --malformed"));
    cells.push(cell(TRAINS, LARGE, "--direction both --coalesce"));
    if !quick {
        let software = "--direction both --coalesce --checksums software";
        cells.push(cell(TRAINS, LARGE, software));
    }
    if cores > 1 {
        cells.push(cell(FULL, LARGE, "--direction both --read-counters"));
    }
    if !quick {
        cells.push(cell(FULL, LARGE, "--direction both --tags 2"));
    }
    let workers = [1, 2, 4, 8, 16].into_iter();
    for workers in workers.filter(|workers| *workers <= cores) {
        for locking in ["none", "burst", "packet"] {
            for copy in ["none", "both"] {
                let none = locking == "none";
                if quick && (workers > 2 || copy == "both" || (workers == 1 && none)) {
                    continue;
                }
                let direction = if none && workers > 1 { "both" } else { "up" };
                cells.push(cell(
                    LOCKS,
                    LARGE,
                    &format!(
                        "--direction {direction} --workers {workers} --locking {locking} --copy {copy}"
                    ),
                ));
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_run_twice_and_none_wants_more_cores_than_there_are() {
        for quick in [false, true] {
            let all = cells(2, quick);
            let mut calls: Vec<_> = all.iter().map(|cell| &cell.0).collect();
            calls.sort_unstable();
            calls.dedup();
            assert_eq!(calls.len(), all.len());
            assert!(calls.iter().all(|call| !call.contains("--workers 4")));
            assert!(calls.iter().any(|call| call.contains("--workers 2")));
        }
        let alone = cells(1, false);
        assert!(!alone.iter().any(|cell| cell.0.contains("--workers 2")));
        assert!(!alone.iter().any(|cell| cell.0.contains("--read-counters")));
    }
}
