//! What must not compile, does not.

#[test]
fn the_wrong_side_and_plain_fields_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
