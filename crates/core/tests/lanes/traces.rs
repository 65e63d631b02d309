//! Owns the proof that requests of a trace become spans at a vault that traces, one each, and nothing elsewhere.

use tierkv_core::codec::Codec;
use tierkv_core::lane::client::{Outcome, Targets};
use tierkv_core::lane::frame::TraceContext;
use tierkv_core::lane::server::{Asked, Span};
use tierkv_core::limits::LANE_SPANS_MAX;
use tierkv_core::store::MADE_NOW;

use super::stand::{ACCEPTED, Engine, Lanes, NAMESPACE, Shape, Vault, bytes_of, key, until};
use super::wires::vault_by_hand;

const LOOKUP: TraceContext = [1; 25];
const FETCH: TraceContext = [2; 25];
const STORE: TraceContext = [3; 25];

/// All that ended, once there are so many.
fn spans(vault: &Vault, count: usize) -> Vec<Span> {
    let all = std::cell::RefCell::new(Vec::new());
    until(|| {
        all.borrow_mut().extend(vault.server.take_spans().0);
        all.borrow().len() >= count
    });
    all.into_inner()
}

/// Two records of three are stored, looked up and fetched; their bytes.
fn trip(vault: &Vault, shape: Shape, is_traced: bool) -> u64 {
    let of = |context| is_traced.then_some(context);
    let engine = Engine::new(shape, 8);
    let lanes = Lanes::open(vault, 2);
    let records = [1, 3].map(|number| engine.record(number, Codec::Raw));
    let bytes = records.iter().map(|record| bytes_of(record).len() as u64).sum();
    let trace = of(STORE);
    let stored =
        lanes.client.store_for(0, MADE_NOW, &NAMESPACE, records.to_vec(), trace.as_ref()).unwrap();
    assert_eq!(lanes.outcome(stored), Outcome::Done(vec![ACCEPTED; 2], bytes, None));
    let keys: Vec<_> = (1..=3).map(key).collect();
    let asked = lanes.client.look_up_in(&NAMESPACE, &keys, true, of(LOOKUP).as_ref()).unwrap();
    assert_eq!(lanes.outcome(asked), Outcome::Found(vec![0b101]));
    let (targets, _) = engine.targets(&[1, 2, 3], Codec::Raw);
    let fetched = lanes.client.fetch(Targets { trace: of(FETCH), ..targets }).unwrap();
    assert!(matches!(lanes.outcome(fetched), Outcome::Done(..)));
    bytes
}

#[test]
fn a_look_up_a_fetch_and_a_store_become_one_span_each() {
    for shape in [Shape::Strided, Shape::Large] {
        let vault = Vault::with(|options| options.traces = true);
        let bytes = trip(&vault, shape, true);
        let all = spans(&vault, 3);
        let said: Vec<_> = all
            .iter()
            .map(|span| (span.asked, span.context, span.records, span.done, span.bytes))
            .collect();
        assert_eq!(
            said,
            [
                (Asked::Store, STORE, 2, 2, bytes),
                (Asked::Lookup, LOOKUP, 3, 2, 0),
                (Asked::Fetch, FETCH, 3, 2, bytes),
            ],
            "{shape:?}"
        );
        let ends: Vec<_> = all.iter().map(|span| span.begun + span.took).collect();
        assert!(ends.is_sorted(), "{ends:?}");
    }
}

#[test]
fn without_a_context_and_at_a_vault_that_does_not_trace_there_is_none() {
    let tracing = Vault::with(|options| options.traces = true);
    trip(&tracing, Shape::Strided, false);
    assert_eq!(tracing.server.take_spans(), (Vec::new(), 0));
    let silent = Vault::open();
    trip(&silent, Shape::Strided, true);
    assert_eq!(silent.server.take_spans(), (Vec::new(), 0));
}

#[test]
fn a_context_is_the_end_of_a_body_and_without_one_no_byte_is_sent_for_it() {
    let (lanes, mut wires) = vault_by_hand(1);
    let engine = Engine::new(Shape::Strided, 8);
    let record = engine.record(1, Codec::Raw);
    let keys = [key(1), key(2)];
    let mut body = |request: u32| {
        let (frame, body) = wires[0].next().unwrap();
        assert_eq!(frame.request, request);
        body
    };
    let mut bodies = |trace: Option<TraceContext>| {
        let client = &lanes.client;
        let look_up = body(client.look_up_in(&NAMESPACE, &keys, true, trace.as_ref()).unwrap());
        let (targets, _) = engine.targets(&[1, 2], Codec::Int8);
        let fetch = body(client.fetch(Targets { trace, ..targets }).unwrap());
        let records = vec![record.clone()];
        let offer = client.store_for(0, MADE_NOW, &NAMESPACE, records, trace.as_ref()).unwrap();
        [look_up, fetch, body(offer)]
    };
    let plain = bodies(None);
    assert_eq!(plain.each_ref().map(Vec::len), [32 + 2 * 36, 32 + 2 * 36, 32 + 44]);
    let traced = bodies(Some(LOOKUP));
    for (traced, plain) in traced.iter().zip(&plain) {
        assert_eq!(*traced, [plain.as_slice(), &LOOKUP].concat());
    }
}

#[test]
fn a_request_that_ends_early_ends_its_span() {
    let vault = Vault::with(|options| options.traces = true);
    let engine = Engine::new(Shape::Large, 4);
    let lanes = Lanes::open(&vault, 1);
    // What can no longer be made is announced, and never sent whole.
    let (record, lease) = engine.defer(1, Codec::Raw);
    engine.arena.slots().release(lease).unwrap();
    lanes.client.store_for(0, MADE_NOW, &NAMESPACE, vec![record], Some(&STORE)).unwrap();
    let [span] = &spans(&vault, 1)[..] else { panic!("one span") };
    assert_eq!((span.context, span.records, span.done, span.bytes), (STORE, 1, 0, 0));
}

#[test]
fn spans_that_nobody_takes_are_bounded_and_counted() {
    let vault = Vault::with(|options| options.traces = true);
    let lanes = Lanes::open(&vault, 1);
    for _ in 0..LANE_SPANS_MAX + 5 {
        let asked = lanes.client.look_up_in(&NAMESPACE, &[key(1)], true, Some(&LOOKUP)).unwrap();
        lanes.outcome(asked);
    }
    let (kept, dropped) = vault.server.take_spans();
    assert_eq!((kept.len(), dropped), (LANE_SPANS_MAX, 5));
    assert_eq!(vault.server.take_spans(), (Vec::new(), 0));
}
