//! Whether two lists of outputs are the same as far as order is promised (section 8): the same frames together, and
//! outputs that are related in the same order. Outputs are the inputs they came from, so that a frame cannot overtake its flow
//! unseen (O5).

use std::collections::BTreeMap;

use crate::classify::{Class, Place, Scope};

/// What the order of outputs depends on, of every frame by its mark.
pub(crate) type Places = BTreeMap<u32, (Place, Class)>;

/// Whether the order of these two frames is promised: one flow, or one of them is a barrier to the other.
fn related(a: &(Place, Class), b: &(Place, Class)) -> bool {
    let same = |a: &Option<Vec<u8>>, b: &Option<Vec<u8>>| a.is_some() && a == b;
    let barrier = |of: &(Place, Class), to: &(Place, Class)| match of.1 {
        Class::Barrier(Scope::Session) => same(&of.0.session, &to.0.session),
        Class::Barrier(Scope::Addresses) => same(&of.0.addresses, &to.0.addresses),
        _ => false,
    };
    same(&a.0.flow, &b.0.flow) || barrier(a, b) || barrier(b, a)
}

/// What is different, if anything. Outputs are lists of marks, heads first; frames of one output are of one flow.
pub(crate) fn difference(places: &Places, got: &[&[u32]], wanted: &[&[u32]]) -> Option<String> {
    let rank = |outputs: &[&[u32]]| -> BTreeMap<Vec<u32>, usize> {
        let outputs = outputs.iter().enumerate();
        outputs.map(|(at, marks)| (marks.to_vec(), at)).collect()
    };
    let (in_got, in_wanted) = (rank(got), rank(wanted));
    if !in_got.keys().eq(in_wanted.keys()) || got.len() != wanted.len() {
        let only = |a: &BTreeMap<Vec<u32>, usize>, b: &BTreeMap<Vec<u32>, usize>| {
            let only = a.keys().filter(|marks| !b.contains_key(*marks));
            only.take(8).cloned().collect::<Vec<_>>()
        };
        return Some(format!(
            "other groups: got {:?}, wanted {:?}",
            only(&in_got, &in_wanted),
            only(&in_wanted, &in_got)
        ));
    }
    let ranked = wanted
        .iter()
        .map(|marks| (&places[&marks[0]], in_got[*marks], *marks));
    let ranked: Vec<_> = ranked.collect();
    for (at, first) in ranked.iter().enumerate() {
        for second in &ranked[at + 1..] {
            // Only what is the other way round is looked at closely.
            if first.1 > second.1 && related(first.0, second.0) {
                return Some(format!(
                    "order: {:?} before {:?}: {:?} {:?}",
                    second.2, first.2, second.0, first.0
                ));
            }
        }
    }
    None
}
