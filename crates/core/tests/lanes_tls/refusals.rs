//! Owns the proof that TLS keeps out whom it should, in time and with the reason, and lets in whoever was vouched for.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use tierkv_core::lane::client::Outcome;
use tierkv_core::lane::frame::Kind;
use tierkv_core::lane::tls::{Client, Server};

use super::certificates::{Authority, NAME, Pair, Proof, params};
use super::stand::{Lanes, Vault, timing, until};
use super::wires::{connect, connect_in_clear, hello};

/// A vault with this certificate, which lets in `clients`, or anybody.
fn vault(proof: &Proof, clients: Option<&str>) -> Vault {
    let tls = Server::new(proof.identity(), clients.map(str::as_bytes)).unwrap();
    Vault::with(|options| options.tls = Some(tls))
}

fn dial(vault: &Vault, tls: Option<Client>) -> Lanes {
    Lanes::with(&vault.address, vault.token(), 2, timing(), tls)
}

fn trusting(ca: &str, name: &str, proof: Option<&Proof>) -> Client {
    Client::new(ca.as_bytes(), name, proof.map(Proof::identity)).unwrap()
}

/// One that nobody but itself vouches for; `is_authority` as the usual tools make them.
fn self_signed(is_authority: bool, adjust: impl FnOnce(&mut CertificateParams)) -> Proof {
    let mut params = params(NAME);
    if is_authority {
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    }
    adjust(&mut params);
    let key = KeyPair::generate().unwrap();
    Proof { cert: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

/// Its time is over.
fn expired(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(2002, 1, 1);
}

/// The client's word for it; the vault has refused as many lanes as came.
fn refused(vault: &Vault, tls: impl Into<Option<Client>>) -> String {
    let before = vault.count("lanes_refused");
    let text = dial(vault, tls.into()).down();
    until(|| vault.count("lanes_refused") > before);
    until(|| vault.server.status().lanes == 0);
    text
}

fn is_let_in(vault: &Vault, tls: Client) {
    assert_eq!(dial(vault, Some(tls)).next(), (0, Outcome::Up));
}

#[test]
fn only_a_certificate_that_somebody_trusted_vouches_for_is_accepted() {
    let (pair, other) = (Pair::new(), Pair::new());
    let (ours, others) = (&pair.authority.cert, &other.authority.cert);
    let anybody = vault(&pair.vault, None);
    is_let_in(&anybody, trusting(ours, NAME, None));
    is_let_in(&anybody, trusting(&format!("{others}{ours}"), NAME, Some(&other.client)));
    for (ca, name) in [(others, NAME), (ours, "elsewhere.test"), (ours, "127.0.0.1")] {
        let text = refused(&anybody, trusting(ca, name, None));
        assert!(text.contains("lane refused: certificate: "), "{name}: {text}");
    }
    let late = pair.authority.issue(NAME, expired);
    let text = refused(&vault(&late, None), trusting(ours, NAME, None));
    assert!(text.contains("certificate: ") && text.contains("expired"), "{text}");
}

#[test]
fn a_pinned_certificate_needs_no_authority_and_no_name_but_its_own_time() {
    for is_authority in [false, true] {
        let proof = self_signed(is_authority, |_| {});
        let of_it = vault(&proof, None);
        is_let_in(&of_it, trusting(&proof.cert, "10.0.0.7", None));
        let twin = self_signed(is_authority, |_| {});
        let text = refused(&of_it, trusting(&twin.cert, NAME, None));
        assert!(text.contains("lane refused: certificate: "), "{text}");
        // Whoever has the certificate and not the key to it proves nothing.
        let thief = Proof { cert: proof.cert.clone(), key: twin.key.clone() };
        assert!(Server::new(thief.identity(), None).is_err());
        let late = self_signed(is_authority, expired);
        let text = refused(&vault(&late, None), trusting(&late.cert, NAME, None));
        assert!(text.contains("expired"), "{text}");
    }
}

#[test]
fn a_vault_that_demands_certificates_lets_in_nobody_without() {
    let (pair, other) = (Pair::new(), Pair::new());
    let ca = &pair.authority.cert;
    let strict = vault(&pair.vault, Some(ca));
    is_let_in(&strict, trusting(ca, NAME, Some(&pair.client)));
    let late = pair.authority.issue("client.test", expired);
    for proof in [None, Some(&other.client), Some(&late)] {
        let text = refused(&strict, trusting(ca, NAME, proof));
        assert!(text.contains("lane refused: certificate: "), "{text}");
    }
    assert_eq!(strict.count("tls_refused"), strict.count("lanes_refused"));
    // A client's own certificate may be pinned, too.
    for is_authority in [false, true] {
        let proof = self_signed(is_authority, |_| {});
        let twin = self_signed(is_authority, |_| {});
        let pinning = vault(&pair.vault, Some(&proof.cert));
        is_let_in(&pinning, trusting(ca, NAME, Some(&proof)));
        assert!(refused(&pinning, trusting(ca, NAME, Some(&twin))).contains("certificate"));
    }
}

#[test]
fn tls_does_not_replace_the_token() {
    let vault = Vault::open();
    let mut wire = connect(&vault);
    wire.send(hello(0, 1), &[0xAA; 32]);
    assert!(wire.refusal().contains("unknown, used or expired"));
    assert_eq!((vault.count("lanes_refused"), vault.count("tls_refused")), (1, 0));
}

#[test]
fn one_end_in_clear_and_one_not_are_no_lane() {
    let secured = Vault::open();
    assert!(refused(&secured, None).contains("does not speak TLS here"));
    let mut wire = connect_in_clear(&secured);
    wire.send(hello(0, 1), &secured.token());
    assert!(wire.refusal().contains("does not speak TLS here"));
    let clear = Vault::with(|options| options.tls = None);
    let text = refused(&clear, super::link::usual().client());
    assert!(text.contains("does not speak TLS here"), "{text}");
}

#[test]
fn a_handshake_that_trickles_or_stops_is_over_in_time() {
    let vault = Vault::with(|options| options.timing.hello = Duration::from_millis(200));
    // The header of a long record, and then nothing, or a byte now and then.
    for pause in [None, Some(Duration::from_millis(10))] {
        let before = vault.count("tls_refused");
        let mut stream = TcpStream::connect(&vault.address).unwrap();
        stream.write_all(&[22, 3, 1, 0x3F, 0xFF]).unwrap();
        while vault.count("tls_refused") == before {
            match pause {
                Some(pause) => {
                    // A reset is what is waited for.
                    let _ = stream.write_all(&[1]);
                    std::thread::sleep(pause);
                }
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
    until(|| vault.server.status().lanes == 0);
}

#[test]
fn garbage_is_refused_and_the_next_comes_in() {
    let vault = Vault::open();
    let hellos: [&[u8]; 6] = [
        &[0; 64],
        &[0xFF; 64],
        b"GET / HTTP/1.1\r\n\r\n",
        // A record longer than any, an empty one, a hello that says nothing.
        &[22, 3, 1, 0xFF, 0xFF],
        &[22, 3, 1, 0, 0],
        &[22, 3, 1, 0, 4, 1, 0, 0, 0],
    ];
    for (index, bytes) in hellos.into_iter().enumerate() {
        let mut stream = TcpStream::connect(&vault.address).unwrap();
        stream.write_all(bytes).unwrap();
        until(|| vault.count("tls_refused") == index as u64 + 1);
    }
    until(|| vault.server.status().lanes == 0);
    let mut wire = connect(&vault);
    wire.send(hello(0, 1), &vault.token());
    assert_eq!(wire.next().unwrap().0.kind, Kind::Welcome);
}

#[test]
fn an_endless_handshake_ends_at_its_bound() {
    let vault = Vault::open();
    let mut stream = TcpStream::connect(&vault.address).unwrap();
    // A message of 16 MiB, of which record after record comes.
    let record = [&[22, 3, 1, 0x40, 0], &[1, 0xFF, 0xFF, 0xFF][..], &[0; (1 << 14) - 4]].concat();
    while stream.write_all(&record).is_ok() {}
    until(|| vault.count("tls_refused") == 1);
}

#[test]
fn texts_that_are_no_certificates_are_named() {
    let pair = Pair::new();
    let ca = pair.authority.cert.as_bytes();
    let error = |tls: tierkv_core::error::Result<Client>| tls.unwrap_err().text;
    assert!(error(Client::new(b"", NAME, None)).starts_with("caPem cannot be used"));
    assert!(error(Client::new(ca, "no name", None)).starts_with("serverName \"no name\""));
    let keyless = Proof { key: String::new(), ..pair.vault.clone() };
    assert!(error(Client::new(ca, NAME, Some(keyless.identity()))).starts_with("keyPem"));
    let text = Server::new(keyless.identity(), None).unwrap_err().text;
    assert!(text.starts_with("keyPem"), "{text}");
    let text = Server::new(pair.vault.identity(), Some(b"none")).unwrap_err().text;
    assert!(text.starts_with("clientCaPem"), "{text}");
    assert!(Authority::new("another").cert.contains("BEGIN CERTIFICATE"));
}
