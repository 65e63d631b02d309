//! Owns the places at a vault's door: how many connections each address has, who waits to be let in, who gives way to whom.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// Names a connection from its arrival to its end; ascending.
pub type PlaceId = u64;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// That were let in, of all addresses and of one.
    pub settled: usize,
    /// Of one address.
    pub settled_each: usize,
    /// That wait to be let in, of all addresses that nobody was let in from before. As many places are kept for the others.
    pub waiting: usize,
    /// Of one address.
    pub waiting_each: usize,
    /// Places beyond `settled` for addresses that somebody was let in from before.
    pub reserve: usize,
    /// Addresses that are kept in mind as such.
    pub known: usize,
}

struct Place {
    /// None: a Unix socket, whose peers are one user.
    network: Option<IpAddr>,
    since: Instant,
    is_settled: bool,
    is_known: bool,
}

/// Who is there.
pub struct Places {
    limits: ConnectionLimits,
    last: PlaceId,
    taken: BTreeMap<PlaceId, Place>,
    /// When somebody was last let in from there, as a number that grows.
    known: HashMap<IpAddr, u64>,
    lettings: u64,
}

impl Places {
    /// With nobody there.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Self {
        let (taken, known) = (BTreeMap::new(), HashMap::new());
        Self { limits, last: 0, taken, known, lettings: 0 }
    }

    /// A place for who came from `address`, and who has lost his: the one that waited longest, of the same address where that
    /// has its share, else of the address that has most. Whoever is honest is let in within milliseconds.
    pub fn enter(&mut self, address: Option<IpAddr>, now: Instant) -> (PlaceId, Option<PlaceId>) {
        let network = address.map(network_of);
        let is_known = network.is_some_and(|network| self.known.contains_key(&network));
        let lost = self.give_way(network, is_known);
        if let Some(lost) = lost {
            self.taken.remove(&lost);
        }
        self.last += 1;
        self.taken.insert(self.last, Place { network, since: now, is_settled: false, is_known });
        (self.last, lost)
    }

    fn give_way(&self, network: Option<IpAddr>, is_known: bool) -> Option<PlaceId> {
        let mut counts: HashMap<Option<IpAddr>, (usize, PlaceId)> = HashMap::new();
        let mut all = 0;
        for (id, place) in &self.taken {
            if !place.is_settled && place.is_known == is_known {
                all += 1;
                counts.entry(place.network).or_insert((0, *id)).0 += 1;
            }
        }
        let own = counts.get(&network).filter(|_| network.is_some());
        if let Some((_, oldest)) = own.filter(|(count, _)| *count >= self.limits.waiting_each) {
            return Some(*oldest);
        }
        if all < self.limits.waiting {
            return None;
        }
        let most =
            counts.values().max_by_key(|(count, oldest)| (*count, std::cmp::Reverse(*oldest)));
        most.map(|(_, oldest)| *oldest)
    }

    /// It was let in; false: there is no place for it, and it has lost the one it had.
    pub fn settle(&mut self, id: PlaceId) -> bool {
        let Some(place) = self.taken.get(&id) else { return false };
        if place.is_settled {
            return true;
        }
        let (network, is_known) = (place.network, place.is_known);
        let settled = || self.taken.values().filter(|place| place.is_settled);
        let most = self.limits.settled + if is_known { self.limits.reserve } else { 0 };
        let own = settled().filter(|other| network.is_some() && other.network == network).count();
        if settled().count() >= most || own >= self.limits.settled_each {
            self.taken.remove(&id);
            return false;
        }
        if let Some(place) = self.taken.get_mut(&id) {
            place.is_settled = true;
        }
        if let Some(network) = network {
            self.remember(network);
        }
        true
    }

    fn remember(&mut self, network: IpAddr) {
        self.lettings += 1;
        self.known.insert(network, self.lettings);
        if self.known.len() <= self.limits.known {
            return;
        }
        if let Some(oldest) = self.known.iter().min_by_key(|(_, at)| **at).map(|(ip, _)| *ip) {
            self.known.remove(&oldest);
        }
    }

    /// It is gone; false: it was before.
    pub fn leave(&mut self, id: PlaceId) -> bool {
        self.taken.remove(&id).is_some()
    }

    /// Takes the places of those that wait for longer than `deadline`.
    pub fn expire(&mut self, now: Instant, deadline: Duration) -> Vec<PlaceId> {
        let is_late =
            |place: &Place| !place.is_settled && now.duration_since(place.since) > deadline;
        let late = self.taken.iter().filter(|(_, place)| is_late(place));
        let late: Vec<_> = late.map(|(id, _)| *id).collect();
        self.taken.retain(|id, _| late.binary_search(id).is_err());
        late
    }
}

/// Whose share an address counts against: one host may have all addresses of an IPv6 network.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: ConnectionLimits = ConnectionLimits {
        settled: 4,
        settled_each: 2,
        waiting: 6,
        waiting_each: 3,
        reserve: 1,
        known: 2,
    };

    #[expect(clippy::unnecessary_wraps, reason = "as a place is entered")]
    fn from(host: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, host]))
    }

    #[test]
    fn the_oldest_of_its_own_address_gives_way_to_a_newcomer() {
        let (mut places, now) = (Places::new(SHARES), Instant::now());
        let first: Vec<_> = (0..3).map(|_| places.enter(from(1), now)).collect();
        assert_eq!(first, [(1, None), (2, None), (3, None)]);
        assert_eq!(places.enter(from(2), now), (4, None));
        assert_eq!(places.enter(from(1), now), (5, Some(1)));
        assert_eq!(places.enter(from(1), now), (6, Some(2)));
    }

    #[test]
    fn where_all_places_are_taken_the_address_with_most_gives_way() {
        let (mut places, now) = (Places::new(SHARES), Instant::now());
        for host in [1, 2, 2, 2, 3, 4] {
            assert_eq!(places.enter(from(host), now).1, None);
        }
        assert_eq!(places.enter(from(5), now), (7, Some(2)));
    }

    #[test]
    fn who_is_known_does_not_wait_among_unknown_addresses() {
        let (mut places, now) = (Places::new(SHARES), Instant::now());
        let (friend, _) = places.enter(from(9), now);
        assert!(places.settle(friend));
        for host in 1..=6 {
            places.enter(from(host), now);
        }
        let (again, _) = places.enter(from(9), now);
        for host in 10..=30 {
            assert_ne!(places.enter(from(host), now).1, Some(again));
        }
        assert!(places.settle(again));
    }

    #[test]
    fn places_inside_are_shared_and_some_are_kept_for_who_is_known() {
        let (mut places, now) = (Places::new(SHARES), Instant::now());
        let mut settle = |host| {
            let (id, _) = places.enter(from(host), now);
            places.settle(id)
        };
        assert_eq!([1, 1, 1].map(&mut settle), [true, true, false]);
        assert_eq!([2, 2, 3].map(&mut settle), [true, true, false]);
        let (friend, _) = places.enter(from(2), now);
        assert!(!places.settle(friend), "its address has its share");
        places.leave(1);
        let (friend, _) = places.enter(from(1), now);
        assert!(places.settle(friend));
        places.leave(2);
        let mut places = Places::new(ConnectionLimits { settled_each: 9, ..SHARES });
        let (friend, _) = places.enter(from(1), now);
        assert!(places.settle(friend));
        for _ in 0..3 {
            let (id, _) = places.enter(from(2), now);
            assert!(places.settle(id));
        }
        let unknown = places.enter(from(3), now).0;
        assert!(!places.settle(unknown));
        let friend = places.enter(from(1), now).0;
        assert!(places.settle(friend), "the reserve");
    }

    #[test]
    fn addresses_are_forgotten_in_turn() {
        let (mut places, now) =
            (Places::new(ConnectionLimits { settled: 99, ..SHARES }), Instant::now());
        for host in 1..=3 {
            let (id, _) = places.enter(from(host), now);
            assert!(places.settle(id));
        }
        assert_eq!(places.known.len(), 2);
        assert!(!places.known.contains_key(&from(1).unwrap()));
    }

    #[test]
    fn who_is_not_let_in_in_time_has_no_place() {
        let (mut places, now) = (Places::new(SHARES), Instant::now());
        let (friend, _) = places.enter(from(1), now);
        assert!(places.settle(friend));
        let (unknown, _) = places.enter(from(2), now);
        let deadline = Duration::from_secs(5);
        assert_eq!(places.expire(now + deadline, deadline), []);
        assert_eq!(places.expire(now + deadline * 2, deadline), [unknown]);
        assert!(!places.leave(unknown));
        assert!(places.leave(friend));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let [one, two, other] =
            ["2001:db8::1", "2001:db8::2:0:0:1", "2001:db8:0:1::1"].map(|ip| ip.parse().unwrap());
        assert_eq!(network_of(one), network_of(two));
        assert_ne!(network_of(one), network_of(other));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(Some(network_of(mapped)), from(1));
    }
}
