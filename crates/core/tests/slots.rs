//! Owns the proof that slots are never handed out twice, never leak, and never answer to a stale lease.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tierkv_core::slots::{Lease, SlotTable};

const SLOTS: u32 = 8;
const OWNERS: u32 = 3;

#[derive(Debug, Clone)]
enum Step {
    Lease { owner: u32, count: u32 },
    Retain(usize),
    Release(usize),
    Chown(usize, u32),
    ReleaseOwner(u32),
    BeginUse(usize),
    EndUse(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = 0..64_usize;
    prop_oneof![
        4 => (0..OWNERS, 0..4_u32).prop_map(|(owner, count)| Step::Lease { owner, count }),
        2 => any.clone().prop_map(Step::Retain),
        5 => any.clone().prop_map(Step::Release),
        1 => (any.clone(), 0..OWNERS).prop_map(|(lease, owner)| Step::Chown(lease, owner)),
        1 => (0..OWNERS).prop_map(Step::ReleaseOwner),
        2 => any.clone().prop_map(Step::BeginUse),
        2 => any.prop_map(Step::EndUse),
    ]
}

/// What should be true, kept the slow and simple way.
#[derive(Default)]
struct Model {
    /// Leases that hold: owner and shares.
    held: BTreeMap<Lease, (u32, u32)>,
    /// All leases ever given.
    given: Vec<Lease>,
    /// Slots with a copy running.
    busy: Vec<u32>,
}

impl Model {
    fn pick(&self, index: usize) -> Option<Lease> {
        (!self.given.is_empty()).then(|| self.given[index % self.given.len()])
    }

    fn take_share(&mut self, lease: Lease) -> bool {
        let shares = &mut self.held.get_mut(&lease).expect("held").1;
        *shares -= 1;
        let ended = *shares == 0;
        if ended {
            self.held.remove(&lease);
        }
        ended
    }

    fn end_all_of(&mut self, owner: u32) -> usize {
        let before = self.held.len();
        self.held.retain(|_, (holder, _)| *holder != owner);
        before - self.held.len()
    }

    fn unavailable(&self) -> usize {
        let leased = self.held.keys().map(|lease| lease.slot);
        leased.chain(self.busy.iter().copied()).collect::<std::collections::BTreeSet<_>>().len()
    }
}

fn lease(table: &mut SlotTable, model: &mut Model, owner: u32, count: u32) {
    let free = table.free();
    let leases = table.lease(owner, count);
    assert_eq!(leases.len(), count.min(free) as usize, "as many as are free, no more");
    for lease in leases {
        assert!(!model.given.contains(&lease), "a lease is given once");
        assert!(!model.held.keys().any(|held| held.slot == lease.slot), "nobody else holds it");
        assert!(!model.busy.contains(&lease.slot), "no copy is running in it");
        model.held.insert(lease, (owner, 1));
        model.given.push(lease);
    }
}

fn apply(table: &mut SlotTable, model: &mut Model, step: &Step) {
    let on = |index: usize| model.pick(index).map(|lease| (lease, model.held.contains_key(&lease)));
    match *step {
        Step::Lease { owner, count } => lease(table, model, owner, count),
        Step::Retain(index) => {
            let Some((lease, held)) = on(index) else { return };
            assert_eq!(table.retain(lease).is_ok(), held, "a stale lease is refused");
            model.held.entry(lease).and_modify(|(_, shares)| *shares += 1);
        }
        Step::Release(index) => {
            let Some((lease, held)) = on(index) else { return };
            let wanted = held.then(|| model.take_share(lease));
            assert_eq!(table.release(lease).ok(), wanted, "true with the last share only");
        }
        Step::Chown(index, owner) => {
            let Some((lease, held)) = on(index) else { return };
            assert_eq!(table.chown(lease, owner).is_ok(), held, "a stale lease is refused");
            model.held.entry(lease).and_modify(|(holder, _)| *holder = owner);
        }
        Step::ReleaseOwner(owner) => {
            assert_eq!(table.release_owner(owner) as usize, model.end_all_of(owner));
        }
        Step::BeginUse(index) => {
            let Some((lease, held)) = on(index) else { return };
            assert_eq!(table.begin_use(lease).is_ok(), held, "a stale lease is refused");
            if held {
                model.busy.push(lease.slot);
            }
        }
        Step::EndUse(index) => {
            if !model.busy.is_empty() {
                table.end_use(model.busy.swap_remove(index % model.busy.len()));
            }
        }
    }
}

fn table() -> SlotTable {
    let mut table = SlotTable::default();
    (0..SLOTS).for_each(|_| table.add());
    table
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_the_book_straight(steps in prop::collection::vec(step(), 1..200)) {
        let mut table = table();
        let mut model = Model::default();
        for step in &steps {
            apply(&mut table, &mut model, step);
            prop_assert_eq!(table.free() as usize, SLOTS as usize - model.unavailable());
        }
        for owner in 0..OWNERS {
            table.release_owner(owner);
        }
        for slot in model.busy.drain(..) {
            table.end_use(slot);
        }
        prop_assert_eq!(table.free(), SLOTS, "nothing leaked");
    }
}

#[test]
fn the_last_freed_slot_is_leased_first() {
    let mut table = table();
    let leases = table.lease(0, SLOTS);
    table.release(leases[5]).unwrap();
    table.release(leases[2]).unwrap();
    let again = table.lease(0, 1);
    assert_eq!(again[0].slot, leases[2].slot);
    assert_eq!(again[0].generation, leases[2].generation + 1);
}

#[test]
fn refusals_name_the_slot() {
    let mut table = table();
    let lease = table.lease(1, 1)[0];
    let beyond = Lease { slot: SLOTS, generation: 0 };
    let free = Lease { slot: 0, generation: 0 };
    let stale = Lease { generation: lease.generation + 1, ..lease };
    for (lease, words) in
        [(beyond, "slot 8 does not exist"), (free, "slot 0 is free"), (stale, "is stale")]
    {
        let error = table.retain(lease).unwrap_err().to_string();
        assert!(error.starts_with("BAD_ARGUMENT: "), "{error}");
        assert!(error.contains(words), "{error}");
    }
}
