//! What EAL refuses is reported with its arguments, and cannot be tried again.

mod support;

use rte_rs::{Eal, Error};

#[test]
fn refused_arguments_are_in_the_error() {
    let error = Eal::init(&support::args().extra(["--no-such-option"])).unwrap_err();
    let Error::EalInit { arguments, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(arguments.ends_with("--no-such-option"), "{arguments}");
    assert_eq!(
        Eal::init(&support::args()).unwrap_err(),
        Error::EalInitialisedBefore
    );
}
