use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn addresses(first: [u8; 4], count: u32) -> impl Iterator<Item = Ipv4Addr> {
    let first = u32::from(Ipv4Addr::from(first));
    (first..first + count).map(Ipv4Addr::from)
}

fn two_pools() -> AddressPools {
    AddressPools::new(vec![
        AddressPool::new("one", addresses([100, 64, 0, 2], 4)),
        AddressPool::new("two", addresses([100, 65, 0, 2], 3)),
    ])
}

#[test]
fn subscriber_gets_its_old_address_while_it_is_free() {
    let mut pools = two_pools();
    let alice = pools.allocate(b"alice").unwrap();
    let bob = pools.allocate(b"bob").unwrap();
    pools.release(alice.address).unwrap();
    pools.release(bob.address).unwrap();
    assert_eq!(pools.allocate(b"bob").unwrap(), bob);
    assert_eq!(pools.allocate(b"alice").unwrap(), alice);
}

#[test]
fn second_session_of_a_subscriber_gets_another_address() {
    let mut pools = two_pools();
    let first = pools.allocate(b"alice").unwrap();
    let second = pools.allocate(b"alice").unwrap();
    assert_ne!(first.address, second.address);
}

#[test]
fn address_given_to_somebody_else_is_no_longer_kept() {
    let mut pools = AddressPools::new(vec![AddressPool::new("one", addresses([100, 64, 0, 2], 1))]);
    let lease = pools.allocate(b"alice").unwrap();
    pools.release(lease.address).unwrap();
    pools.allocate(b"bob").unwrap();
    let refused = pools.allocate(b"alice").unwrap_err();
    assert_eq!(refused.to_string(), "no free address in one");
    assert_eq!(pools.pools[0].occupancy.remembered(), 1);
}

#[test]
fn one_pool_alone_gives_its_own_addresses_and_is_named_when_it_has_none() {
    let mut pools = two_pools();
    let first = pools.allocate_from(1, b"alice").unwrap();
    assert_eq!(first.pool, 1);
    pools.release(first.address).unwrap();
    assert_eq!(pools.allocate_from(1, b"alice").unwrap(), first);
    for n in 0u8..2 {
        assert_eq!(pools.allocate_from(1, &[n]).unwrap().pool, 1);
    }
    let refused = pools.allocate_from(1, b"late").unwrap_err();
    assert_eq!(refused.to_string(), "no free address in two");
    assert!(pools.allocate_from(2, b"late").is_err());
}

#[test]
fn next_pool_is_used_when_the_first_is_full_and_all_are_named_when_none_is_left() {
    let mut pools = two_pools();
    let leases: Vec<_> = (0u8..7)
        .map(|n| pools.allocate(&[n]).unwrap().pool)
        .collect();
    assert_eq!(leases, [0, 0, 0, 0, 1, 1, 1]);
    let refused = pools.allocate(b"late").unwrap_err();
    assert_eq!(refused.pools, ["one", "two"]);
}

#[test]
fn adopted_address_is_not_given_again() {
    let mut pools = two_pools();
    let address = Ipv4Addr::new(100, 64, 0, 2);
    assert_eq!(
        pools.reserve(address, b"alice").unwrap(),
        Lease { pool: 0, address }
    );
    assert_eq!(
        pools.reserve(address, b"bob").unwrap_err().to_string(),
        "100.64.0.2 of pool one is already in use"
    );
    assert_ne!(pools.allocate(b"bob").unwrap().address, address);
}

#[test]
fn strange_addresses_are_refused_by_name() {
    let mut pools = two_pools();
    let stranger = Ipv4Addr::new(192, 0, 2, 1);
    assert_eq!(
        pools.reserve(stranger, b"x"),
        Err(LeaseError::NotInPool(stranger))
    );
    assert_eq!(
        pools.release(stranger),
        Err(LeaseError::NotInPool(stranger))
    );
    let idle = Ipv4Addr::new(100, 65, 0, 2);
    assert_eq!(
        pools.release(idle).unwrap_err().to_string(),
        "100.65.0.2 of pool two is not in use"
    );
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u8),
    Reserve(u8, u8),
    Release(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u8..10).prop_map(Step::Allocate),
        (any::<u8>(), 0u8..10).prop_map(|(address, user)| Step::Reserve(address, user)),
        any::<u8>().prop_map(Step::Release),
    ]
}

proptest! {
    #[test]
    fn no_address_is_handed_out_twice_and_the_balance_is_right(steps in prop::collection::vec(step(), 0..200)) {
        let mut pools = two_pools();
        let all: Vec<Ipv4Addr> = pools.iter().flat_map(|pool| pool.addresses.clone()).collect();
        let pick = |n: u8| all[usize::from(n) % all.len()];
        // Model: who has what, and whom a free address was last given to.
        let mut held: HashMap<Ipv4Addr, u8> = HashMap::new();
        for step in steps {
            match step {
                Step::Allocate(user) => match pools.allocate(&[user]) {
                    Ok(lease) => prop_assert_eq!(held.insert(lease.address, user), None),
                    Err(_) => prop_assert_eq!(held.len(), all.len()),
                },
                Step::Reserve(address, user) => {
                    let address = pick(address);
                    prop_assert_eq!(pools.reserve(address, &[user]).is_ok(), !held.contains_key(&address));
                    held.entry(address).or_insert(user);
                }
                Step::Release(address) => {
                    let address = pick(address);
                    prop_assert_eq!(pools.release(address).is_ok(), held.remove(&address).is_some());
                }
            }
            prop_assert_eq!(pools.iter().map(AddressPool::used).sum::<u32>() as usize, held.len());
        }
        for address in held.into_keys() {
            pools.release(address).unwrap();
        }
        prop_assert!(pools.iter().all(|pool| pool.used() == 0 && pool.occupancy.remembered() <= pool.total() as usize));
        let again: std::collections::HashSet<_> = (0..all.len()).map(|n| pools.allocate(&n.to_be_bytes()).unwrap().address).collect();
        prop_assert_eq!(again.len(), all.len());
    }
}
