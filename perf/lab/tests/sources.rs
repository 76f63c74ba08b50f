//! What the sources themselves must hold: invariants with a name have both ends, the fast path has no lock, buffers are freed
//! by the one function, every drop reason is provoked by a test, every hazard's checks exist. `docs/hazards.md` refers to these.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// This file, which names what it looks for.
const OWN: &str = "perf/lab/tests/sources.rs";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// All files below `dir` with the extension, as paths from the root.
fn files(dir: &str, extension: &str) -> Vec<(String, String)> {
    fn walk(dir: &Path, extension: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                walk(&path, extension, found);
            } else if path.extension().is_some_and(|have| have == extension) {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    walk(&root.join(dir), extension, &mut found);
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn sources() -> Vec<(String, String)> {
    ["dataplane", "controlplane", "deploy", "perf"]
        .into_iter()
        .flat_map(|dir| files(dir, "rs"))
        .collect()
}

/// The part of a file before its unit tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests")
        .next()
        .unwrap_or(text)
        .split("#[cfg(all(test, not(loom)))]\nmod tests")
        .next()
        .unwrap_or(text)
}

/// The words `INV-...-n` in a text.
fn invariants(text: &str) -> BTreeSet<String> {
    text.match_indices("INV-")
        .map(|(at, _)| {
            let word = |c: &char| c.is_ascii_uppercase() || c.is_ascii_digit() || *c == '-';
            text[at..].chars().take_while(word).collect::<String>()
        })
        .filter(|name| name.ends_with(|c: char| c.is_ascii_digit()))
        .collect()
}

/// HZ-10 C(a).
#[test]
fn every_named_invariant_is_defined_once_and_referred_to_by_provider_and_consumer() {
    let docs = std::fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut defined: BTreeMap<String, (String, String)> = BTreeMap::new();
    for line in docs.lines().filter(|line| line.starts_with("| INV-")) {
        let cells: Vec<_> = line
            .split('|')
            .map(|cell| cell.trim().trim_matches('`').to_owned())
            .collect();
        let ends = (cells[3].clone(), cells[4].clone());
        assert!(
            defined.insert(cells[1].clone(), ends).is_none(),
            "{} is defined twice",
            cells[1]
        );
    }
    let mut used: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| file != OWN) {
        for name in invariants(&text) {
            used.entry(name).or_default().insert(file.clone());
        }
    }
    for name in used.keys() {
        assert!(
            defined.contains_key(name),
            "{name} is not in the table of docs/architecture.md"
        );
    }
    for (name, (provider, consumer)) in &defined {
        for file in [provider, consumer] {
            let refers = used.get(name).is_some_and(|files| files.contains(file));
            assert!(refers, "{name}: {file} does not refer to it");
        }
    }
}

/// HZ-11 C(c). (A `OnceLock` is set by one thread and looked at by others without waiting, unless `get_or_init` is asked.)
#[test]
fn no_lock_is_within_reach_of_a_worker() {
    let words = [
        "Mutex",
        "RwLock",
        "parking_lot",
        "Condvar",
        "get_or_init",
        "LazyLock",
        "RefCell",
        "thread_local!",
    ];
    let checked: Vec<_> = [
        "dataplane/fastpath/src",
        "dataplane/worker/src",
        "dataplane/shm/src",
        "dataplane/wire/src",
        "dataplane/rte-rs/src",
    ]
    .into_iter()
    .flat_map(|dir| files(dir, "rs"))
    .filter(|(name, _)| !name.contains("/testing"))
    .collect();
    assert!(checked.len() > 60, "{}", checked.len());
    for (file, text) in checked {
        // EAL and ports are brought up and taken down under a lock, before and after there are workers; the others are tests.
        let apart = [
            "rte-rs/src/eal.rs",
            "rte-rs/src/port.rs",
            "shm/src/model.rs",
            "shm/src/killed.rs",
            "/tests.rs",
        ];
        if apart.iter().any(|end| file.ends_with(end)) {
            continue;
        }
        for line in product(&text)
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            for word in words {
                assert!(!line.contains(word), "{file}: {line}");
            }
        }
    }
}

/// HZ-08 C(a).
#[test]
fn packet_buffers_are_freed_by_one_function() {
    for (file, text) in sources().into_iter().filter(|(file, _)| file != OWN) {
        for raw in ["pktmbuf_free", "rte_mbuf_raw_free", "mempool_put"] {
            let allowed =
                file == "dataplane/rte-rs/src/mbuf.rs" || file.starts_with("dataplane/dpdk-sys/");
            assert!(
                allowed || !text.contains(raw),
                "{file} frees buffers by {raw}"
            );
        }
    }
}

/// HZ-04 C(c).
#[test]
fn raw_pointers_into_shared_memory_are_in_the_modules_that_own_it() {
    // `lock.rs` asks the kernel whether the other side lives; it touches no memory; the model is a test.
    let owners = [
        "mapping.rs",
        "shared.rs",
        "private.rs",
        "lock.rs",
        "model.rs",
    ];
    for (file, text) in files("dataplane/shm/src", "rs") {
        let owner = owners.iter().any(|owner| file.ends_with(owner));
        assert!(
            owner || !product(&text).contains("unsafe {"),
            "{file} has unsafe code"
        );
    }
    for dir in [
        "dataplane/fastpath/src",
        "dataplane/wire/src",
        "dataplane/worker/src",
        "controlplane",
    ] {
        for (file, text) in files(dir, "rs") {
            assert!(!text.contains("unsafe {"), "{file} has unsafe code");
        }
    }
}

/// HZ-08 C(b): each drop reason is named by a test that provokes it.
#[test]
fn every_drop_reason_is_named_by_a_test() {
    // Its own test would have to break the memory of two processes in a way that each build of them prevents.
    // A core port without a TAP twin is nothing a configuration can say.
    let beyond_reach = ["RingCorrupt", "HostNoTwin"];
    let list = std::fs::read_to_string(root().join("dataplane/shm/src/counters.rs")).unwrap();
    let drops = list
        .split("    Drop {")
        .nth(1)
        .unwrap()
        .split("\n    }")
        .next()
        .unwrap();
    let mut tests = String::new();
    for (file, text) in sources().into_iter().filter(|(file, _)| file != OWN) {
        if file.contains("/tests/") {
            tests.push_str(&text);
        } else if let Some(unit) = text.split_once("mod tests {") {
            tests.push_str(unit.1);
        }
    }
    let mut missing = Vec::new();
    for line in drops.lines().filter(|line| line.contains(" = \"")) {
        let mut words = line.split_ascii_whitespace();
        let variant = words.next().unwrap();
        let label = line.split('"').nth(1).unwrap();
        let named = [
            format!("Counter::{variant}"),
            format!("C::{variant}"),
            format!("\"{label}\""),
        ];
        if !named.iter().any(|name| tests.contains(name.as_str()))
            && !beyond_reach.contains(&variant)
        {
            missing.push(variant);
        }
    }
    assert!(missing.is_empty(), "no test provokes {missing:?}");
}

/// The table of `docs/hazards.md` names tests that exist, and every hazard this product has a check for is in it.
#[test]
fn the_hazard_table_names_tests_that_exist() {
    let table = std::fs::read_to_string(root().join("docs/hazards.md")).unwrap();
    let mut tests: BTreeSet<String> = BTreeSet::new();
    for (_, text) in sources() {
        let names = text.split("fn ").skip(1);
        tests.extend(names.map(|rest| {
            rest.chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        }));
    }
    let mut rows = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| HZ-")) {
        rows.insert(line.split('|').nth(1).unwrap().trim()[..5].to_owned());
        // Everything in code font in the last column is a test, or a file when it has a slash or a dot.
        let last = line.trim_end_matches('|').rsplit('|').next().unwrap();
        for name in last.split('`').skip(1).step_by(2) {
            if name.contains(['/', '.', ' ']) {
                let path = name.split([' ', ':']).next().unwrap();
                let exists = !path.contains('/') || root().join(path).exists();
                assert!(exists, "{name} in {line}");
            } else {
                assert!(tests.contains(name), "no test {name}: {line}");
            }
        }
    }
    for hazard in [
        "01", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14", "21",
    ] {
        assert!(
            rows.contains(&format!("HZ-{hazard}")),
            "HZ-{hazard} is missing"
        );
    }
}

/// HZ-10 C(c).
#[test]
fn comments_name_functions_that_exist() {
    let all = sources();
    let mut functions = BTreeSet::new();
    for (_, text) in &all {
        for rest in text.split("fn ").skip(1) {
            functions.insert(
                rest.chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect::<String>(),
            );
        }
    }
    // Links of rustdoc are checked by rustdoc; this looks at plain mentions in the dataplane, `name()`.
    let mut unknown = Vec::new();
    for (file, text) in all
        .iter()
        .filter(|(file, _)| file.starts_with("dataplane/"))
    {
        for line in text
            .lines()
            .map(str::trim_start)
            .filter(|line| line.starts_with("//"))
        {
            for quoted in line.split('`').skip(1).step_by(2) {
                let Some(name) = quoted.strip_suffix("()") else {
                    continue;
                };
                let name = name.rsplit("::").next().unwrap();
                let ours = name
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
                // The C library's and DPDK's are named with their section or prefix.
                if ours && !name.starts_with("rte_") && !functions.contains(name) {
                    unknown.push(format!("{file}: {quoted}"));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
}

/// The ids of coalescing's conformance rules in a text; `C4 to C7` are four.
fn rules(text: &str) -> BTreeSet<String> {
    let id = |word: &str| {
        let (letter, number) = word.split_at_checked(1)?;
        let number: u8 = number.parse().ok()?;
        letter
            .contains(['P', 'K', 'C', 'M', 'E', 'T', 'O', 'H', 'F', 'S', 'X'])
            .then(|| (letter.to_owned(), number))
    };
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let mut found = BTreeSet::new();
    for (at, word) in words.iter().enumerate() {
        let Some((letter, first)) = id(word) else {
            continue;
        };
        let last = match words.get(at + 1..at + 3) {
            Some(["to", last]) => id(last).filter(|(other, _)| *other == letter),
            _ => None,
        };
        let last = last.map_or(first, |(_, last)| last);
        found.extend((first..=last).map(|number| format!("{letter}{number}")));
    }
    found
}

/// Every rule of coalescing has its row in `docs/conformance-coalescing.md`, and what the row names is there.
#[test]
fn every_rule_of_coalescing_has_its_code_and_its_tests() {
    let table = std::fs::read_to_string(root().join("docs/conformance-coalescing.md")).unwrap();
    let cases = root().join("dataplane/fastpath/tests/coalescing-cases.yaml");
    let cases = std::fs::read_to_string(cases).unwrap();
    let cases: BTreeSet<&str> = cases
        .split("name: ")
        .skip(1)
        .filter_map(|rest| rest.split(['\n', ',', ' ', '}']).next())
        .collect();
    let sources = sources();
    let functions: BTreeSet<&str> = sources
        .iter()
        .filter(|(file, _)| file != OWN)
        .flat_map(|(_, text)| text.split("fn ").skip(1))
        .filter_map(|rest| rest.split(['(', '<']).next())
        .chain(["no_lock_is_within_reach_of_a_worker"])
        .collect();
    let in_code_font = |cell: &str| -> Vec<String> {
        let names = cell.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    };
    let mut rows = Vec::new();
    for line in table.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<_> = line.trim_matches('|').split('|').collect();
        let [rule, _, files, of_cases, tests] = cells[..] else {
            panic!("{line}");
        };
        let rule = rule.trim().to_owned();
        let (files, of_cases, tests) = (
            in_code_font(files),
            in_code_font(of_cases),
            in_code_font(tests),
        );
        assert!(!files.is_empty(), "{line}");
        assert!(!of_cases.is_empty() || !tests.is_empty(), "{line}");
        for file in files {
            let path = root().join("dataplane").join(&file);
            let text = std::fs::read_to_string(&path).expect(&file);
            assert!(
                rules(&text).contains(&rule),
                "{file} does not name rule {rule}"
            );
        }
        for case in of_cases {
            assert!(cases.contains(&*case), "no case {case}: {line}");
        }
        for test in tests {
            assert!(functions.contains(&*test), "no test {test}: {line}");
        }
        rows.push(rule);
    }
    let all = "P0 to P3, K1 to K5, C1 to C17, M1 to M11, E1 to E5, T1 to T5, O1 to O5, H1 to H7, F1 to F8, S1 to S10, X1 to X4";
    let listed: BTreeSet<_> = rows.iter().cloned().collect();
    assert_eq!(listed, rules(all));
    assert_eq!(listed.len(), rows.len(), "a rule has two rows");
}
