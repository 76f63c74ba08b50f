//! Coming to the shared memory: who makes it, who is refused, and what is said then.
#![allow(
    clippy::unwrap_used,
    reason = "a helper of the tests here is a test as well"
)]

mod directory;

use bng_shm::{AttachError, Capacities, Dataplane, Publisher, Record, Session, SessionState};
use bng_shm::{SlotIndex, Vlans};
use directory::{Directory, SMALL};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

const LARGER: Capacities = Capacities { routes: 2, ..SMALL };

fn some_session() -> Session {
    Session {
        generation: 0,
        state: SessionState::Forwarding,
        owner: 0,
        client_mac: [2, 0, 0, 0, 0, 1],
        vlans: Vlans::default(),
        mtu: 1492,
        framed_ip: [100, 64, 0, 1].into(),
        gateway_ip: [100, 64, 0, 254].into(),
        nat: None,
        ..Session::NONE
    }
}

/// What control writes, the dataplane reads.
fn assert_joined(control: &mut Publisher, dataplane: &Dataplane) {
    let slot = SlotIndex(7);
    let generation = control
        .publish_session(slot, &some_session(), &Record::default())
        .unwrap();
    let found = dataplane.reader().session(slot).unwrap().unwrap();
    assert_eq!(
        found,
        Session {
            generation,
            ..some_session()
        }
    );
    assert!(control.dataplane_alive() && dataplane.control_alive());
}

#[test]
fn either_side_may_come_first() {
    let dir = Directory::new();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    assert!(control.created() && !control.dataplane_alive());
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    assert_joined(&mut control, &dataplane);

    let dir = Directory::new();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    assert!(!dataplane.control_alive());
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    assert!(!control.created());
    assert_joined(&mut control, &dataplane);
}

#[test]
fn both_may_come_at_once() {
    for _ in 0..20 {
        let dir = Directory::new();
        let start = Barrier::new(2);
        let (mut control, dataplane) = thread::scope(|scope| {
            let control = scope.spawn(|| {
                start.wait();
                Publisher::attach(&dir, SMALL).unwrap()
            });
            start.wait();
            let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
            (control.join().unwrap(), dataplane)
        });
        assert_joined(&mut control, &dataplane);
    }
}

#[test]
fn both_may_come_at_once_to_memory_of_an_older_configuration() {
    for _ in 0..20 {
        let dir = Directory::new();
        drop(Publisher::attach(&dir, LARGER).unwrap());
        let start = Barrier::new(2);
        let (mut control, dataplane) = thread::scope(|scope| {
            let control = scope.spawn(|| {
                start.wait();
                Publisher::attach(&dir, SMALL).unwrap()
            });
            start.wait();
            let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
            (control.join().unwrap(), dataplane)
        });
        assert_joined(&mut control, &dataplane);
        let replaced = [control.replaced(), dataplane.replaced()];
        assert_eq!(replaced.iter().flatten().count(), 1, "one made it anew");
        assert_eq!(replaced.iter().flatten().next().unwrap().what, "routes");
    }
}

#[test]
fn a_second_process_of_a_role_is_refused_by_name() {
    let dir = Directory::new();
    let control = Publisher::attach(&dir, SMALL).unwrap();
    let refused = Publisher::attach(&dir, SMALL).unwrap_err();
    assert!(matches!(&refused, AttachError::Taken { .. }), "{refused}");
    let said = refused.to_string();
    assert!(said.contains("bng-controlplane is running"), "{said}");
    assert!(said.contains("control.lock"), "{said}");

    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let said = Dataplane::attach(&dir, SMALL).unwrap_err().to_string();
    assert!(said.contains("bng-dataplane is running"), "{said}");
    assert!(control.dataplane_alive() && dataplane.control_alive());

    drop(control);
    assert!(!dataplane.control_alive());
    assert!(!Publisher::attach(&dir, SMALL).unwrap().created());
}

#[test]
fn asking_whether_the_other_lives_never_gets_in_its_way() {
    let dir = Directory::new();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let (done, answers) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if dataplane.control_alive() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let mut refused = None;
        let mut attached = 0;
        // Many times, and with many questions at the same time.
        while refused.is_none() && (attached < 500 || answers.load(Ordering::Relaxed) < 500) {
            refused = Publisher::attach(&dir, SMALL).err();
            attached += 1;
        }
        done.store(true, Ordering::Relaxed);
        assert!(refused.is_none(), "{refused:?}");
    });
}

#[test]
fn other_capacities_are_refused_while_the_other_lives_and_replaced_when_not() {
    let dir = Directory::new();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let refused = Publisher::attach(&dir, LARGER).unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, AttachError::Mismatch { .. }), "{said}");
    for part in [
        "routes is 0x1",
        "needs 0x2",
        "bng-dataplane is running",
        "restart both",
    ] {
        assert!(said.contains(part), "{said}");
    }
    // The refusal has left nothing behind: the right configuration is welcome.
    let control = Publisher::attach(&dir, SMALL).unwrap();
    assert!(!control.created());
    drop((control, dataplane));

    let control = Publisher::attach(&dir, LARGER).unwrap();
    assert!(control.created());
    let replaced = control.replaced().unwrap();
    assert_eq!(
        (replaced.what, replaced.ours, replaced.theirs),
        ("routes", 2, 1)
    );
}

#[test]
fn nonsense_capacities_are_refused_by_name() {
    let dir = Directory::new();
    let none = Capacities {
        workers: 0,
        ..SMALL
    };
    let said = Publisher::attach(&dir, none).unwrap_err().to_string();
    assert!(said.contains("workers is 0, allowed is 1 to 64"), "{said}");
    assert!(!dir.exists());
}

#[test]
fn another_build_is_named_by_what_differs() {
    // Offset in the header, and the name of the field there.
    for (offset, what) in [
        (0, "magic"),
        (8, "ABI version"),
        (16, "layout hash"),
        (24, "access_ports"),
        (12, "ready mark"),
    ] {
        let dir = Directory::new();
        let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
        let state = File::options().write(true).open(dir.join("state")).unwrap();
        state.write_all_at(&[0xee], offset).unwrap();
        let said = Publisher::attach(&dir, SMALL).unwrap_err().to_string();
        assert!(said.contains(&format!("state: {what} is 0x")), "{said}");
        drop(dataplane);
        let control = Publisher::attach(&dir, SMALL).unwrap();
        assert_eq!(control.replaced().unwrap().what, what);
    }
}

#[test]
fn a_truncated_or_garbage_state_file_is_replaced_by_name() {
    let dir = Directory::new();
    drop(Publisher::attach(&dir, SMALL).unwrap());
    let path = dir.join("state");
    let len = fs::metadata(&path).unwrap().len();
    for short in [0, 1, 100, 4_096, (2 << 20) - 1, 2 << 20, len - 1, len + 1] {
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(short).unwrap();
        let control = Publisher::attach(&dir, SMALL).unwrap();
        let replaced = control.replaced().unwrap();
        assert_eq!((replaced.what, replaced.theirs), ("length in bytes", short));
        drop(control);
        assert_eq!(fs::metadata(&path).unwrap().len(), len);
    }
    fs::write(&path, vec![0xff; len as usize]).unwrap();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let replaced = dataplane.replaced().unwrap();
    assert_eq!((replaced.what, replaced.theirs), ("magic", u64::MAX));
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let dir = Directory::new();
    drop(Publisher::attach(&dir, SMALL).unwrap());
    let path = dir.join("state");
    fs::rename(&path, dir.join("elsewhere")).unwrap();
    symlink(dir.join("elsewhere"), &path).unwrap();
    let said = Publisher::attach(&dir, SMALL).unwrap_err().to_string();
    assert!(said.ends_with("state: open"), "{said}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let said = Publisher::attach(&dir, SMALL).unwrap_err().to_string();
    assert!(said.ends_with("state: open"), "{said}");
}

#[test]
fn a_state_file_removed_under_a_running_process_is_noticed() {
    let dir = Directory::new();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    fs::remove_file(dir.join("state")).unwrap();
    let refused = Publisher::attach(&dir, SMALL).unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, AttachError::Removed { .. }), "{said}");
    assert!(said.contains("restart bng-dataplane"), "{said}");
    drop(dataplane);
    assert!(Publisher::attach(&dir, SMALL).unwrap().created());
}

#[test]
fn the_files_are_for_their_owner_alone() {
    let dir = Directory::new();
    let _both = (
        Publisher::attach(&dir, SMALL).unwrap(),
        Dataplane::attach(&dir, SMALL).unwrap(),
    );
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(dir.to_path_buf()), 0o700);
    let mut names: Vec<_> = fs::read_dir(&*dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["control.lock", "dataplane.lock", "making.lock", "state"]
    );
    for name in names {
        assert_eq!(mode(dir.join(&name)), 0o600, "{name}");
    }
}

#[test]
fn a_directory_where_others_can_write_is_refused() {
    let dir = Directory::new();
    fs::create_dir(&*dir).unwrap();
    for mode in [0o770, 0o702, 0o1777] {
        fs::set_permissions(&*dir, Permissions::from_mode(mode)).unwrap();
        let refused = Publisher::attach(&dir, SMALL).unwrap_err();
        assert!(matches!(refused, AttachError::Exposed { .. }), "{refused}");
    }
    fs::set_permissions(&*dir, Permissions::from_mode(0o755)).unwrap();
    Publisher::attach(&dir, SMALL).unwrap();
}

/// Needs root, like everything that plays another user.
#[test]
fn a_directory_somebody_else_made_first_is_refused() {
    let dir = Directory::new();
    fs::create_dir(&*dir).unwrap();
    fs::set_permissions(&*dir, Permissions::from_mode(0o700)).unwrap();
    chown(&*dir, Some(65_534), None).unwrap();
    let refused = Publisher::attach(&dir, SMALL).unwrap_err();
    let owner = matches!(refused, AttachError::Foreign { owner: 65_534, .. });
    assert!(owner, "{refused}");
    assert!(fs::read_dir(&*dir).unwrap().next().is_none(), "untouched");
}

#[test]
fn a_restart_is_counted_and_finds_the_sessions() {
    let dir = Directory::new();
    let dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    assert_joined(&mut control, &dataplane);
    let (id, first) = (control.boot_id(), control.dataplane_status());
    drop((control, dataplane));
    let mut control = Publisher::attach(&dir, SMALL).unwrap();
    assert!(!control.dataplane_status().alive);
    let _dataplane = Dataplane::attach(&dir, SMALL).unwrap();
    let second = control.dataplane_status();
    assert!(second.alive && second.incarnation == first.incarnation + 1);
    assert_eq!((control.boot_id(), control.survey().len()), (id, 1));
}
