//! Owns the far side: a process with a vault's store and lanes, and the other end of plain TCP.

use std::io::BufRead;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use tierkv_core::lane::server::{Options, Right, Server, Token};
use tierkv_core::lane::tls::{self, Identity};
use tierkv_core::listener::{self, Listener};
use tierkv_core::store::{self, CLASS_ANY, RecordKey, Store};

use super::near::{NAMESPACE, key};
use super::tcp;

/// Serves until standard input ends; each input line is an order and is answered by one line.
pub fn serve(host: &str, socket: &str) {
    let mut orders = std::io::stdin().lock().lines();
    let set_bytes: u64 = orders.next().unwrap().unwrap().parse().unwrap();
    // Full once the first set is stored, so each later record displaces an earlier one.
    let max_bytes = set_bytes + set_bytes / 4;
    let options =
        store::Options { max_bytes, max_record_bytes: max_bytes / 2, record_class: CLASS_ANY };
    let store = Arc::new(Store::new(options).unwrap());
    let proof = rcgen::generate_simple_self_signed(vec!["far".to_owned()]).unwrap();
    let (cert_pem, key_pem) = (proof.cert.pem(), proof.signing_key.serialize_pem());
    let identity = Identity { cert_pem: cert_pem.as_bytes(), key_pem: key_pem.as_bytes() };
    let at = format!("{host}:0");
    let tls = tls::Server::new(identity, None).unwrap();
    let served = [(&*at, None), (&*at, Some(tls)), (socket, None)].map(|(at, tls)| {
        let listener = listener::Options::new(at, tls.is_some());
        let options = Options::new(max_bytes / 2, max_bytes);
        let server = Arc::new(Server::new(Arc::clone(&store), Options { tls, ..options }));
        let listener = Listener::open(listener, Some(Arc::clone(&server)), None).unwrap();
        (server, listener)
    });
    let listener = TcpListener::bind((host, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    // Any two of these bytes, read as a scale, make an ordinary number.
    let set = vec![0x3C; usize::try_from(set_bytes).unwrap()];
    thread::spawn(move || tcp::serve(&listener, set));
    let ports = [0, 1].map(|index: usize| served[index].1.port().unwrap());
    println!(":{} :{} :{port} {}", ports[0], ports[1], cert_pem.replace('\n', "|"));
    for order in orders {
        match order.unwrap().as_str() {
            order if order.starts_with("retire ") => retire(&store, order),
            token => served.iter().for_each(|(server, _)| {
                server.admit(token_of(token), Right { may_store: true, account: 0 });
            }),
        }
        println!("done");
    }
}

/// Retires the blocks of a set, so that they are evicted first; the order is `retire SET BLOCKS`.
fn retire(store: &Store, order: &str) {
    let mut numbers = order.split(' ').skip(1).map(|number| number.parse().unwrap());
    let [set, blocks] = [(); 2].map(|()| numbers.next().unwrap());
    let key = |index| RecordKey::from_packed(NAMESPACE, &key(set, index as usize));
    store.add_to_session(0, &(0..blocks).map(key).collect::<Vec<_>>(), &[], false);
    store.end_session(0, true);
}

/// Pads a short name to a token.
pub fn token_of(name: &str) -> Token {
    let mut token = [0; 32];
    token[..name.len()].copy_from_slice(name.as_bytes());
    token
}
