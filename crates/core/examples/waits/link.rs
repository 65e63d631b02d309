//! Owns the rates of lanes over a link with latency: probes, which are no records, so that only the link is measured.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use tierkv_core::lane::client::{Client, Options, Outcome};
use tierkv_core::lane::server::Right;
use tierkv_core::lane::wire::Timing;
use tierkv_core::store::{self, CLASS_ANY, Store};

use super::hand::Vault;
use super::{MIB, print};

/// Sessions that one far side admits.
const SESSIONS: u8 = 200;
const CHUNKS: u32 = 192;
const ROUNDS: usize = 3;

/// Serves until standard input ends; prints its port.
pub fn serve(host: &str) {
    let options = store::Options {
        max_bytes: 512 * MIB,
        max_record_bytes: 64 * MIB,
        record_class: CLASS_ANY,
    };
    let vault = Vault::open(Store::new(options).unwrap(), host);
    println!("{}", vault.port());
    for line in std::io::stdin().lines() {
        let token: u8 = line.unwrap().parse().unwrap();
        assert!(token < SESSIONS);
        vault.server.admit([token; 32], Right { may_store: true, account: 0 });
        println!("admitted");
    }
}

/// Prints MiB/s from and to the vault; the token must be admitted.
pub fn run(address: &str, token: u8, lanes: u16) {
    let (tell, outcomes) = channel();
    let sink = Arc::new(move |request, outcome| drop(tell.send((request, outcome))));
    let (down, up) = <(Arc<_>, Arc<_>)>::default();
    let (rails, token, timing) = (vec![address.into()], [token; 32], Timing::default());
    let options = Options { rails, token, lanes, tls: None, timing, down, up, lends: None };
    let client = Client::open(options, sink).unwrap();
    assert_eq!(outcomes.recv().unwrap(), (0, Outcome::Up));
    for to_vault in [false, true] {
        // The first one is not counted, because the windows grow meanwhile.
        let mut rates = Vec::new();
        for _ in 0..=ROUNDS {
            let begun = Instant::now();
            let asked = client.probe(CHUNKS, to_vault).unwrap();
            let (request, outcome) = outcomes.recv().unwrap();
            assert!(request == asked && matches!(outcome, Outcome::Done(..)), "{outcome:?}");
            rates.push(f64::from(CHUNKS) / begun.elapsed().as_secs_f64());
        }
        let name = if to_vault { "to" } else { "from" };
        print(&format!("{name}First"), "MiB/s", rates[0]);
        let mut rest = rates[1..].to_vec();
        rest.sort_by(f64::total_cmp);
        print(name, "MiB/s", rest[rest.len() / 2]);
    }
}
