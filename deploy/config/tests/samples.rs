//! Every sample beside this crate is a configuration the daemons accept, and says the same to another YAML reader.
// Helpers of tests are tests too, but clippy sees only functions marked as such.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};

use bng_config::{Config, PortRole};

/// The sample configurations under `deploy/` and `docker/`.
fn samples() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    ["deploy/ironbng.yaml", "docker/ironbng.yaml"]
        .map(|path| root.join(path))
        .to_vec()
}

#[test]
fn every_sample_is_accepted() {
    for sample in samples() {
        if let Err(error) = Config::load(&sample) {
            panic!("{error}");
        }
    }
}

#[test]
fn every_yaml_file_that_looks_like_a_configuration_is_in_the_list() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for directory in ["deploy", "docker"] {
        for entry in std::fs::read_dir(root.join(directory)).unwrap() {
            let path = entry.unwrap().path();
            let yaml = path
                .extension()
                .is_some_and(|extension| extension == "yaml");
            if yaml
                && std::fs::read_to_string(&path)
                    .unwrap()
                    .contains("\ndataplane:")
            {
                found.push(path);
            }
        }
    }
    found.sort();
    assert_eq!(found, samples());
}

#[test]
fn another_yaml_reader_understands_the_samples_alike() {
    for sample in samples() {
        let text = std::fs::read_to_string(&sample).unwrap();
        let ours = Config::load(&sample).unwrap();
        let theirs: Config = serde_yaml::from_str(&text).unwrap();
        assert_eq!(
            format!("{ours:?}"),
            format!("{theirs:?}"),
            "{}",
            sample.display()
        );
    }
}

#[test]
fn the_bare_metal_sample_has_one_access_and_one_core_port() {
    let config = Config::load(&samples()[0]).unwrap();
    let roles: Vec<PortRole> = config
        .dataplane
        .ports
        .iter()
        .map(|port| port.role)
        .collect();
    assert_eq!(roles, [PortRole::Access, PortRole::Core]);
    assert!(config.dataplane.eal.hugepages);
    assert_eq!(config.dataplane.idle_backoff_us, 0);
}

#[test]
fn what_the_bare_metal_sample_says_of_coalescing_can_be_taken_out_of_its_comments() {
    let mut text = std::fs::read_to_string(&samples()[0]).unwrap();
    for line in [
        "coalescing:",
        "  upstream: { tcp: true }",
        "  downstream: { tcp: true }",
        "  hold_us: 0",
        "segmentation: port",
        "twin_offloads: true",
    ] {
        let comment = format!("# {line}");
        assert_eq!(text.matches(&comment).count(), 1, "{comment}");
        text = text.replace(&comment, line);
    }
    let dataplane = Config::parse(text.as_bytes(), &samples()[0])
        .unwrap()
        .dataplane;
    assert!(dataplane.coalescing.is_on());
    assert!(dataplane.ports[1].twin_offloads);
}
