//! Users and their passwords.

use std::path::Path;

use bng_config::Config;

use super::{GOOD, appended};

#[test]
fn passwords_are_never_shown() {
    let long = "hunter2".repeat(40);
    let expected = "bng.yaml:14:38: auth.users[0].password: this value is not allowed; write text of at most 255 bytes, in quotes";
    appended(
        &format!("auth: {{ users: [{{ name: a, password: {long} }}] }}\n"),
        expected,
    );
    appended(
        "auth: { users: [{ name: a, password: hunter2 }, { name: a, password: hunter2 }] }\n",
        "bng.yaml:14:57: auth.users[1].name: `a` is already used by auth.users[0].name (line 14); choose another",
    );
    let text = format!("{GOOD}auth: {{ users: [{{ name: a, password: hunter2 }}] }}\n");
    let config = Config::parse(text.as_bytes(), Path::new("bng.yaml")).unwrap();
    assert_eq!(config.auth.users.len(), 1);
    assert!(!format!("{config:?} {config:#?}").contains("hunter2"));
}

#[test]
fn passwords_in_the_wrong_place_are_not_shown_either() {
    appended(
        "auth: { users: [{ name: a, password:hunter2 }] }\n",
        "bng.yaml:14:28: auth.users[0].password: needs a space after the colon; write `password: value`",
    );
    appended(
        "auth:\n  users:\n    - password:hunter2\n",
        "bng.yaml:16:7: auth.users[0]: this value is not allowed; write keys and values, indented below",
    );
    appended(
        "auth: { users: hunter2 }\n",
        "bng.yaml:14:16: auth.users: this value is not allowed; write a list",
    );
    appended(
        "auth: { users: [{ name: a, password: [hunter2] }] }\n",
        "bng.yaml:14:28: auth.users[0].password: a list is not allowed; write text of at most 255 bytes, in quotes",
    );
}

#[test]
fn empty_password_must_be_written_out() {
    appended(
        "auth: { users: [{ name: a, password: }] }\n",
        "bng.yaml:14:36: auth.users[0].password: has no value; write text of at most 255 bytes, in quotes",
    );
    let text = format!("{GOOD}auth: {{ users: [{{ name: a, password: \"\" }}] }}\n");
    assert!(Config::parse(text.as_bytes(), Path::new("bng.yaml")).is_ok());
}

/// A directory of its own for one test, removed at the end.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bng-config-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn load(&self, main: &str, users: &str) -> Result<Config, String> {
        std::fs::write(self.0.join("bng.yaml"), main).unwrap();
        std::fs::write(self.0.join("users.yaml"), users).unwrap();
        let prefix = format!("{}/", self.0.display());
        Config::load(self.0.join("bng.yaml"))
            .map_err(|error| error.to_string().replace(&prefix, ""))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn users_file_joins_the_users_and_is_named_in_its_errors() {
    let directory = Directory::new("users");
    let main = format!(
        "{GOOD}auth: {{ users: [{{ name: alice, password: a }}], users_file: users.yaml }}\n"
    );
    let config = directory
        .load(
            &main,
            "- { name: bob, password: b }\n- { name: carol, password: c }\n",
        )
        .unwrap();
    let names: Vec<&str> = config
        .auth
        .users
        .iter()
        .map(|user| user.name.as_str())
        .collect();
    assert_eq!(names, ["alice", "bob", "carol"]);
    let cases = [
        (
            "- { name: bob }\n",
            "users.yaml:1:3: [0]: the key `password` is missing; add it: text of at most 255 bytes, in quotes",
        ),
        (
            "- { name: alice, password: b }\n",
            "users.yaml:1:11: [0].name: the user `alice` is also in auth.users; keep one of the two",
        ),
        (
            "- { name: bob, password: b }\n- { name: bob, password: c }\n",
            "users.yaml:2:11: [1].name: `bob` is already used by [0].name (line 1); choose another",
        ),
        (
            "- { name: bob, password: b, policy: gold }\n",
            "users.yaml:1:37: [0].policy: there is no policy `gold`; none is known here, remove it",
        ),
        (
            "users: []\n",
            "users.yaml:1:1: a section is not allowed; write a list",
        ),
    ];
    for (users, expected) in cases {
        assert_eq!(directory.load(&main, users).unwrap_err(), expected);
    }
    let missing = main.replace("users.yaml", "nobody.yaml");
    assert!(
        directory
            .load(&missing, "")
            .unwrap_err()
            .starts_with("nobody.yaml: cannot be read")
    );
}
