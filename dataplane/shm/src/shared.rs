//! What may lie in the mapping: atomics, and structures of nothing but such.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

/// Types that may lie in the mapping.
///
/// Structures get it from `shared!` only, which checks each field; so a plain field, which the other
/// process could change under a reference to it, does not compile.
///
/// # Safety
/// The type consists of atomics only (any bit pattern is valid, shared mutation is sound), is
/// `repr(C)`, and its alignment is at most 4,096.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic.
unsafe impl Shared for AtomicU8 {}
// SAFETY: an atomic.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {}
// SAFETY: an array has the bit patterns and the alignment of its elements.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

/// Makes a structure [`Shared`] after a check that every one of its fields is. All fields must be
/// named (of a tuple structure, by their numbers); one left out is an error as well.
macro_rules! shared {
    ($(const $n:ident: $nt:ty =>)? $name:ty, $pattern:ident { $($field:tt),+ $(,)? }) => {
        // SAFETY: the function below compiles only if every field is `Shared`, and the alignment is
        // checked; all structures given here are repr(C).
        unsafe impl $(<const $n: $nt>)? $crate::shared::Shared for $name {}
        const _: () = {
            #[allow(dead_code, reason = "it only has to compile")]
            fn fields_are_shared $(<const $n: $nt>)? (all: &$name) {
                fn is_shared<T: $crate::shared::Shared>(_: &T) {
                    const { assert!(align_of::<T>() <= 4_096) }
                }
                let $pattern { $($field: _),+ } = all;
                $(is_shared(&all.$field);)+
            }
        };
    };
}
pub(crate) use shared;
