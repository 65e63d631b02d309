//! Owns the proof against peers that end, wait or lie: memory that changes, places that do not exist, records nobody reads.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use tierkv_core::codec::Codec;
use tierkv_core::lane::client::Outcome;
use tierkv_core::lane::frame::{FRAME_BYTES, Frame, Kind};
use tierkv_core::lane::standing::{Place, parse_places};
use tierkv_core::lent::Borrowed;
use tierkv_core::outbox::Outbox;
use tierkv_core::pool::PooledBuffer;
use tierkv_core::store::ItemStatus;

use super::stand::{
    ACCEPTED, BAD, Engine, INCOMPLETE, Lanes, NAMESPACE, SOON, Shape, Vault, bytes_of, key, timing,
    until,
};
use super::wires::hello;

/// One lane by hand over a Unix socket, with memory to lend.
struct Peer {
    socket: UnixStream,
    outbox: Outbox,
}

impl Peer {
    fn new(socket: UnixStream) -> Self {
        socket.set_read_timeout(Some(SOON)).unwrap();
        Self { socket, outbox: Outbox::default() }
    }

    /// A client that lends its memory, welcomed on its only lane.
    fn client(vault: &Vault) -> Self {
        let path = vault.address.strip_prefix("unix:").unwrap();
        let mut peer = Self::new(UnixStream::connect(path).unwrap());
        peer.send_lent(Frame { record_bytes: 1, ..hello(0, 1) }, &vault.token());
        let (welcome, _, lent) = peer.next_lent().unwrap();
        assert_eq!((welcome.kind, welcome.code, welcome.record_bytes), (Kind::Welcome, 1, 1));
        assert!(lent.is_some());
        peer
    }

    fn send(&mut self, frame: Frame, body: &[u8]) {
        self.socket.write_all(&[&frame.of(body).encode(), body].concat()).unwrap();
    }

    fn send_lent(&self, frame: Frame, body: &[u8]) {
        let fd = self.outbox.lendable().unwrap().for_readers().unwrap();
        self.send_descriptor(frame, body, &fd);
    }

    fn send_descriptor(&self, frame: Frame, body: &[u8], fd: &OwnedFd) {
        let bytes = [&frame.of(body).encode(), body].concat();
        let descriptors = [fd.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let sent =
            sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// The next frame, its body, and the descriptor that came with it; `None` when the peer has ended.
    fn next_lent(&mut self) -> Option<(Frame, Vec<u8>, Option<OwnedFd>)> {
        let mut header = [0; FRAME_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut header)];
        let flags = RecvFlags::WAITALL;
        let got = recvmsg(&self.socket, &mut parts, &mut control, flags).ok()?.bytes;
        if got < FRAME_BYTES {
            return None;
        }
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let frame = Frame::parse(&header).unwrap();
        let mut body = vec![0; frame.bytes as usize];
        self.socket.read_exact(&mut body).ok()?;
        Some((frame, body, fd))
    }

    /// The next frame of a kind, whatever comes before.
    fn next(&mut self, kind: Kind) -> (Frame, Vec<u8>) {
        loop {
            let (frame, body, _) = self.next_lent().expect("a frame");
            if frame.kind == kind {
                return (frame, body);
            }
        }
    }

    /// Waits until the peer has ended.
    fn ended(&mut self) {
        assert!(self.next_lent().is_none());
    }

    /// A record in the memory that is lent.
    fn put(&self, record: &[u8]) -> PooledBuffer {
        self.outbox.put(record).unwrap()
    }

    fn name(&mut self, request: u32, places: &[Place]) {
        let mut body = Vec::new();
        for place in places {
            place.push_to(&mut body);
        }
        self.send(Frame::new(Kind::Standing, request), &body);
    }
}

fn place(item: u32, record: &PooledBuffer) -> Place {
    Place { item, offset: record.place().unwrap().offset, bytes: record.len() as u64 }
}

/// A vault by hand, and a client of it on one lane.
fn vault_by_hand(lends: impl FnOnce(&Peer, Frame)) -> (Lanes, Peer, Option<OwnedFd>) {
    let address = Vault::socket();
    let path = address.strip_prefix("unix:").unwrap();
    let listener = UnixListener::bind(path).unwrap();
    let lanes = Lanes::dial(&address, [9; 32], 1, timing());
    let mut vault = Peer::new(listener.accept().unwrap().0);
    let (hello, token, lent) = vault.next_lent().unwrap();
    assert_eq!((hello.kind, hello.record_bytes, &token[..]), (Kind::Hello, 1, &[9; 32][..]));
    lends(&vault, Frame { code: 1, record_bytes: 1, ..Frame::new(Kind::Welcome, 0) });
    assert_eq!(lanes.next(), (0, Outcome::Up));
    std::fs::remove_file(path).unwrap();
    (lanes, vault, lent)
}

fn lending(vault: &Peer, welcome: Frame) {
    vault.send_lent(welcome, &[]);
}

#[test]
fn a_place_that_is_written_anew_is_refused_and_no_page_of_it_is_used() {
    let engine = Engine::new(Shape::Strided, 8);
    let (lanes, mut vault, _) = vault_by_hand(lending);
    let [first, second] = [1, 2].map(|number| bytes_of(&engine.record(number, Codec::Raw)));
    let mut record = vault.put(&first);
    let (targets, leases) = engine.targets(&[1, 1, 1], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    let (fetch, _) = vault.next(Kind::Fetch);
    assert_eq!(fetch.item, 1, "the client reads where records stand");
    vault.name(request, &[place(0, &record)]);
    assert_eq!(vault.next(Kind::Read).0.item, 1);
    // A part is of another record, as while its memory is used again; then all of it is.
    record[5000..6000].copy_from_slice(&second[5000..6000]);
    vault.name(request, &[place(1, &record)]);
    assert_eq!(vault.next(Kind::Read).0.item, 1);
    record.copy_from_slice(&second);
    vault.name(request, &[place(2, &record)]);
    let Outcome::Done(statuses, _, Some(reason)) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [ACCEPTED, BAD, BAD]);
    assert!(reason.contains("payload checksum"), "{reason}");
    let page = engine.page(&engine.record(1, Codec::Raw), Codec::Raw);
    assert!(engine.arena.peek(leases[0].slot).unwrap() == page);
}

#[test]
fn what_a_vault_writes_after_its_records_were_read_is_not_seen() {
    let engine = Engine::new(Shape::Large, 8);
    let (lanes, mut vault, _) = vault_by_hand(lending);
    let mut record = vault.put(&bytes_of(&engine.record(1, Codec::Raw)));
    let (targets, leases) = engine.targets(&[1], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    vault.name(request, &[place(0, &record)]);
    let Outcome::Done(statuses, ..) = lanes.outcome(request) else { panic!("done") };
    record.fill(0xEE);
    // A name of a request that is over is read past.
    vault.name(request, &[place(0, &record)]);
    assert_eq!(vault.next(Kind::Read).0.item, 1);
    assert_eq!(vault.next(Kind::Read).0.item, 1);
    assert_eq!(statuses, [ACCEPTED]);
    let page = engine.page(&engine.record(1, Codec::Raw), Codec::Raw);
    assert!(engine.arena.peek(leases[0].slot).unwrap() == page);
}

#[test]
fn a_vault_that_names_what_is_not_there_or_not_asked_for_ends_its_session() {
    let engine = Engine::new(Shape::Strided, 8);
    for (item, offset, text) in [(0, u64::MAX - 7, "beyond what is lent"), (5, 0, "not asked for")]
    {
        let (lanes, mut vault, _) = vault_by_hand(lending);
        let (targets, _) = engine.targets(&[1], Codec::Raw);
        let request = lanes.client.fetch(targets).unwrap();
        let record = vault.put(&bytes_of(&engine.record(1, Codec::Raw)));
        vault.name(request, &[Place { item, offset, ..place(0, &record) }]);
        let Outcome::Failed(_, statuses) = lanes.outcome(request) else { panic!("failed") };
        assert_eq!(statuses, [INCOMPLETE]);
        let down = lanes.down();
        assert!(down.contains(text), "{down}");
    }
}

#[test]
fn a_vault_that_ends_within_a_fetch_leaves_what_was_read_and_nothing_else() {
    let engine = Engine::new(Shape::Large, 8);
    let (lanes, mut vault, _) = vault_by_hand(lending);
    let record = vault.put(&bytes_of(&engine.record(1, Codec::Raw)));
    let (targets, leases) = engine.targets(&[1, 2], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    vault.name(request, &[place(0, &record)]);
    assert_eq!(vault.next(Kind::Read).0.item, 1);
    drop((record, vault));
    let Outcome::Failed(_, statuses) = lanes.outcome(request) else { panic!("failed") };
    assert_eq!(statuses, [ACCEPTED, INCOMPLETE]);
    let page = engine.page(&engine.record(1, Codec::Raw), Codec::Raw);
    assert!(engine.arena.peek(leases[0].slot).unwrap() == page);
    assert_eq!(engine.inbox.live(), (0, 0));
}

#[test]
fn memory_that_may_shrink_is_not_mapped_and_bytes_come() {
    let engine = Engine::new(Shape::Strided, 8);
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let unsealed = rustix::fs::memfd_create("tierkv-test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, 1 << 20).unwrap();
    let (lanes, mut vault, _) =
        vault_by_hand(|vault, welcome| vault.send_descriptor(welcome, &[], &unsealed));
    assert_eq!(lanes.client.lends(), [false, true]);
    let (targets, _) = engine.targets(&[1], Codec::Raw);
    let request = lanes.client.fetch(targets).unwrap();
    assert_eq!(vault.next(Kind::Fetch).0.item, 0);
    let record = bytes_of(&engine.record(1, Codec::Raw));
    let chunk = Frame { record_bytes: record.len() as u64, ..Frame::new(Kind::Chunk, request) };
    vault.send(chunk, &record);
    let Outcome::Done(statuses, ..) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [ACCEPTED]);
}

#[test]
fn a_client_names_few_records_and_keeps_each_until_its_answer() {
    let engine = Engine::new(Shape::Large, 12);
    let (lanes, mut vault, lent) = vault_by_hand(lending);
    let lent = Borrowed::map(&lent.unwrap()).unwrap();
    let (deferred, _): (Vec<_>, Vec<_>) =
        (1..=6).map(|number| engine.defer(number, Codec::Raw)).unzip();
    let request = lanes.client.store(&NAMESPACE, deferred).unwrap();
    vault.next(Kind::Offer);
    vault.send(Frame::new(Kind::Wanted, request), &[0; 6]);
    let mut read = 0;
    while read < 6 {
        let (frame, body) = vault.next(Kind::Standing);
        for Place { item, offset, bytes } in parse_places(&body) {
            // It stands as long as the vault has not answered, however much the client has still to send.
            assert!(engine.outbox.live().0 <= 3, "{:?}", engine.outbox.live());
            let record = lent.part(offset, bytes).unwrap();
            let number = u8::try_from(item + 1).unwrap();
            let page = Engine::new(Shape::Large, 2);
            assert!(record == bytes_of(&page.record(number, Codec::Raw)), "{number}");
            let code = ItemStatus::Accepted as u16;
            vault.send(Frame { item, code, ..Frame::new(Kind::Status, frame.request) }, &[]);
            read += 1;
        }
    }
    let Outcome::Done(statuses, ..) = lanes.outcome(request) else { panic!("done") };
    assert_eq!(statuses, [ACCEPTED; 6]);
    until(|| engine.outbox.live() == (0, 0));
}

#[test]
fn a_store_that_is_given_up_frees_its_records_and_the_next_has_room() {
    let engine = Engine::new(Shape::Large, 12);
    let (lanes, mut vault, _) = vault_by_hand(lending);
    for round in 0..4 {
        let (deferred, leases): (Vec<_>, Vec<_>) =
            (1..=3).map(|number| engine.defer(number, Codec::Raw)).unzip();
        let request = lanes.client.store(&NAMESPACE, deferred).unwrap();
        vault.next(Kind::Offer);
        vault.send(Frame::new(Kind::Wanted, request), &[0; 3]);
        vault.next(Kind::Standing);
        // The vault hangs.
        lanes.client.cancel(request);
        let Outcome::Failed(_, statuses) = lanes.outcome(request) else { panic!("failed") };
        assert_eq!(statuses, [INCOMPLETE; 3], "{round}");
        vault.next(Kind::Cancel);
        until(|| engine.outbox.live() == (0, 0));
        for lease in leases {
            engine.arena.slots().release(lease).unwrap();
        }
    }
}

#[test]
fn a_record_that_changes_while_it_is_copied_is_not_stored() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 8);
    let mut client = Peer::client(&vault);
    let made = bytes_of(&engine.record(1, Codec::Raw));
    let mut record = client.put(&made);
    let offer = |number: u8, bytes: usize| {
        [&NAMESPACE[..], &key(number), &(bytes as u64).to_le_bytes()].concat()
    };
    record[9000] ^= 1;
    client.send(Frame::new(Kind::Offer, 1), &offer(1, made.len()));
    assert_eq!(client.next(Kind::Wanted).1, [0]);
    client.name(1, &[place(0, &record)]);
    assert_eq!(client.next(Kind::Status).0.code, ItemStatus::BadRecord as u16);
    record[9000] ^= 1;
    client.send(Frame::new(Kind::Offer, 2), &offer(1, made.len()));
    assert_eq!(client.next(Kind::Wanted).1, [0]);
    client.name(2, &[Place { bytes: 40_000, ..place(0, &record) }]);
    assert_eq!(client.next(Kind::Status).0.code, ItemStatus::BadRecord as u16, "another length");
    client.send(Frame::new(Kind::Offer, 3), &offer(1, made.len()));
    assert_eq!(client.next(Kind::Wanted).1, [0]);
    client.name(3, &[place(0, &record)]);
    assert_eq!(client.next(Kind::Status).0.code, ItemStatus::Accepted as u16);
    // What the client writes later is nothing to the vault.
    record.fill(0xEE);
    let of = tierkv_core::store::RecordKey::from_packed(NAMESPACE, &key(1));
    assert!(*vault.store.pin_resident(&of).unwrap() == *made);
    client.name(3, &[Place { item: 0, offset: 1 << 50, bytes: 4096 }]);
    client.ended();
}

#[test]
fn a_client_that_reads_nothing_is_cut_off_and_keeps_no_record() {
    let vault = Vault::with(|options| options.timing.stall = Duration::from_millis(300));
    let engine = Engine::new(Shape::Large, 8);
    let records: Vec<_> = (1..=4).map(|number| engine.record(number, Codec::Raw)).collect();
    let lanes = Lanes::open(&vault, 1);
    assert_eq!(lanes.store(records), [ACCEPTED; 4]);
    drop(lanes);
    let mut client = Peer::client(&vault);
    let keys: Vec<u8> = (1..=4).flat_map(key).collect();
    let fetch = Frame { item: 1, ..Frame::new(Kind::Fetch, 1) };
    client.send(fetch, &[&NAMESPACE[..], &keys].concat());
    let (_, body) = client.next(Kind::Standing);
    assert!(parse_places(&body).count() < 4, "a lane has few of them");
    assert!(vault.server.status().sending > 0, "it has not been read");
    let of = |number| tierkv_core::store::RecordKey::from_packed(NAMESPACE, &key(number));
    assert!(vault.store.pin_resident(&of(1)).is_some());
    until(|| vault.server.status().lanes == 0);
    assert_eq!(vault.server.status().sending, 0);
}

#[test]
fn a_client_that_says_it_has_read_more_than_stands_ends_its_session() {
    let vault = Vault::open();
    let mut client = Peer::client(&vault);
    client.send(Frame { item: 1, ..Frame::new(Kind::Read, 0) }, &[]);
    client.ended();
}

#[test]
fn a_client_that_lent_nothing_gets_bytes_and_cannot_name_records() {
    let vault = Vault::open();
    let engine = Engine::new(Shape::Strided, 4);
    assert_eq!(Lanes::open(&vault, 1).store(vec![engine.record(1, Codec::Raw)]), [ACCEPTED]);
    let path = vault.address.strip_prefix("unix:").unwrap();
    let mut client = Peer::new(UnixStream::connect(path).unwrap());
    client.send(hello(0, 1), &vault.token());
    let (welcome, _, lent) = client.next_lent().unwrap();
    assert_eq!((welcome.code, welcome.record_bytes, lent.is_none()), (0, 0, true));
    let fetch = Frame { item: 1, ..Frame::new(Kind::Fetch, 1) };
    client.send(fetch, &[&NAMESPACE[..], &key(1)].concat());
    assert_eq!(client.next_lent().unwrap().0.kind, Kind::Chunk);
    client.name(1, &[Place { item: 0, offset: 0, bytes: 4096 }]);
    client.ended();
}
