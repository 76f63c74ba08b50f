//! Finds the package that carries lwIP's sources and compiles its PPPoE client.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Directories below `src` all of whose C files are compiled.
const DIRECTORIES: &[&str] = &[
    "core",
    "core/ipv4",
    "core/ipv6",
    "netif/ppp",
    "netif/ppp/polarssl",
];
/// Directory of the package `lwip`, downloaded by cargo if need be.
fn sources() -> Result<PathBuf, Box<dyn Error>> {
    let cargo = std::env::var("CARGO")?;
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--all-features"])
        .args(["--filter-platform", &std::env::var("TARGET")?])
        .current_dir(std::env::var("CARGO_MANIFEST_DIR")?)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let manifest = (packages.iter())
        .find(|package| package["name"] == "lwip")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("package lwip is not there")?;
    let directory = Path::new(manifest).parent().ok_or("no directory")?;
    Ok(directory.join("src"))
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=c");
    println!("cargo:rerun-if-changed=../../Cargo.lock");
    let sources = sources()?;
    let mut build = cc::Build::new();
    build
        .include("c")
        .include(sources.join("include"))
        .file("c/peer.c")
        .file(sources.join("netif/ethernet.c"))
        .warnings(false);
    for directory in DIRECTORIES {
        for entry in std::fs::read_dir(sources.join(directory))? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "c") {
                build.file(path);
            }
        }
    }
    build.try_compile("lwip_peer")?;
    Ok(())
}
