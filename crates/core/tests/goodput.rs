//! A link's rate is that of all transfers together, follows a change within a few hundred busy ms, and is doubted while nothing comes.

use std::sync::Arc;
use std::thread;

use tierkv_core::goodput::{Goodput, Meter};
use tierkv_core::limits::GOODPUT_BURST_BYTES_MIN;

/// A meter and its clock.
#[derive(Default)]
struct Link {
    meter: Meter,
    ms: f64,
}

impl Link {
    /// Of about 100 Mb/s.
    fn known() -> Self {
        let mut link = Self::default();
        (0..5).for_each(|_| link.transfer(1_200_000, 102.0, false));
        link
    }

    fn begin(&mut self) {
        self.meter.begin(self.ms, 2.0, false);
    }

    fn end(&mut self, is_cut: bool) {
        self.meter.end(self.ms, is_cut, false);
    }

    /// Of records that only an archive has.
    fn begin_far(&mut self) {
        self.meter.begin(self.ms, 2.0, true);
    }

    fn end_far(&mut self, is_cut: bool) {
        self.meter.end(self.ms, is_cut, true);
    }

    fn moved(&mut self, bytes: u64) {
        self.meter.moved(self.ms, bytes);
    }

    /// One transfer alone: `bytes` in `ms`, of which 2 ms of waiting.
    fn transfer(&mut self, bytes: u64, ms: f64, is_cut: bool) {
        self.begin();
        self.ms += ms;
        if bytes > 0 {
            self.moved(bytes);
        }
        self.end(is_cut);
    }

    /// `bytes` each 20 ms, 20 times.
    fn stream(&mut self, bytes: u64) {
        for _ in 0..20 {
            self.ms += 20.0;
            self.moved(bytes);
        }
    }

    /// Megabytes per second.
    fn rate(&self) -> f64 {
        self.meter.rate(self.ms, None).expect("a rate") / 1e6
    }
}

#[track_caller]
fn assert_near(rate: f64, wanted: f64) {
    assert!((rate / wanted - 1.0).abs() < 0.01, "{rate} for {wanted}");
}

#[test]
fn an_archive_that_is_waited_for_hides_no_change_of_the_link() {
    let mut link = Link::known();
    let known = link.rate();
    for (bytes, wanted) in [(240_000, 1.0), (24_000, 0.1), (480_000, 2.0)] {
        link.begin_far();
        for _ in 0..60 {
            link.ms += 60.0;
            link.meter.waited(link.ms, 60.0);
            link.ms += 20.0;
            link.moved(bytes);
        }
        link.end_far(false);
        let share = link.rate() / known / wanted;
        assert!((0.8..1.25).contains(&share), "{share} of {wanted}");
    }
}

#[test]
fn only_silence_was_waiting_however_many_lanes_waited() {
    let mut link = Link::known();
    let known = link.rate();
    link.begin_far();
    for _ in 0..40 {
        // Four lanes waited 20 of these 30 ms, side by side.
        link.ms += 30.0;
        for _ in 0..4 {
            link.meter.waited(link.ms, 20.0);
            link.moved(25);
        }
    }
    assert!(link.rate() < known / 2.0, "{}", link.rate());
}

#[test]
fn silence_while_an_archive_is_waited_for_says_nothing() {
    let mut link = Link::known();
    let known = link.rate();
    for is_cut in [true, false] {
        link.begin_far();
        link.ms += 3000.0;
        assert_near(link.rate(), known);
        link.end_far(is_cut);
        assert_near(link.rate(), known);
    }
    // What is beside it waits for the same lanes.
    link.begin();
    link.begin_far();
    link.ms += 3000.0;
    assert_near(link.rate(), known);
    link.end_far(true);
    assert_near(link.rate(), known);
    for _ in 0..5 {
        link.stream(480_000);
    }
    link.end(false);
    assert!(link.rate() > 1.5 * known, "{}", link.rate());
}

#[test]
fn nothing_is_known_first_then_what_was_measured_waiting_apart() {
    let mut link = Link::default();
    assert_eq!(link.meter.rate(0.0, None), None);
    assert_eq!(link.meter.rate(0.0, Some(5.0)), Some(5.0));
    link.transfer(100, 50.0, false);
    assert_eq!(link.meter.rate(link.ms, None), None, "few bytes say nothing");
    link.transfer(1_000_000, 12.0, false);
    assert_near(link.rate(), 100.0);
}

#[test]
fn a_first_small_transfer_gives_a_rate_and_its_beginning_none() {
    let mut link = Link::default();
    link.begin();
    link.ms = 10.0;
    link.moved(100_000);
    assert_eq!(link.meter.rate(link.ms, None), None);
    link.ms = 102.0;
    assert_near(link.rate(), 1.0);
    link.end(false);
    assert_near(link.rate(), 1.0);
}

#[test]
fn transfers_that_share_a_link_count_together() {
    let mut link = Link::default();
    link.begin();
    link.begin();
    link.ms = 102.0;
    link.moved(5_000_000);
    link.end(false);
    link.moved(5_000_000);
    link.end(false);
    assert_near(link.rate(), 100.0);
}

#[test]
fn follows_a_link_that_became_a_hundred_times_slower_and_one_that_recovered() {
    let mut link = Link::default();
    (0..20).for_each(|_| link.transfer(10_000_000, 102.0, false));
    (0..5).for_each(|_| link.transfer(100_000, 102.0, false));
    assert!(link.rate() < 5.0);
    (0..5).for_each(|_| link.transfer(10_000_000, 102.0, false));
    assert!(link.rate() > 80.0);
}

#[test]
fn is_doubted_while_a_transfer_brings_nothing_but_not_before_its_first_bytes_are_due() {
    let mut link = Link::known();
    let known = link.rate();
    link.begin();
    link.ms += 22.0;
    assert_near(link.rate(), known);
    link.ms += 100.0;
    assert!(link.rate() < known * 0.5, "{}", link.rate());
    link.ms += 60.0;
    assert!(link.rate() < known * 0.35, "{}", link.rate());
    link.ms += 450.0;
    assert!(link.rate() < known * 0.1, "{}", link.rate());
}

#[test]
fn that_breaks_down_in_the_middle_of_a_transfer_is_known_as_slow_before_its_end() {
    let mut link = Link::default();
    link.begin();
    link.stream(2_000_000);
    assert_near(link.rate(), 100.0);
    link.ms += 120.0;
    assert!(link.rate() < 50.0, "{}", link.rate());
    link.stream(20_000);
    assert!(link.rate() < 10.0, "{}", link.rate());
}

#[test]
fn whose_bytes_come_in_bursts_is_not_taken_for_slow_within_one() {
    let mut link = Link::default();
    link.begin();
    link.ms += 2.0;
    for burst in 0..3 {
        link.ms += 262.0;
        // A record's header comes by itself.
        for bytes in [256, 262_144, 262_144, 262_144, 262_144] {
            link.moved(bytes);
            link.ms += 0.01;
        }
        assert!(link.rate() > 3.5, "{burst}: {}", link.rate());
    }
    link.end(false);
    assert!(link.rate() > 3.9);
}

#[test]
fn bytes_that_come_early_do_not_make_a_link_fast() {
    let mut link = Link::known();
    let known = link.rate();
    link.begin();
    link.ms += 4.0;
    link.moved(1_000_000);
    assert!(link.rate() <= known);
}

#[test]
fn given_up_at_once_says_nothing_and_given_up_after_a_while_without_bytes_is_slow() {
    let mut link = Link::known();
    let known = link.rate();
    link.transfer(10_000, 22.0, true);
    assert_near(link.rate(), known);
    link.transfer(0, 1000.0, false);
    assert_near(link.rate(), known);
    link.transfer(0, 1000.0, true);
    assert!(link.rate() < 1.0);
}

#[test]
fn a_link_of_any_speed_that_breaks_down_is_known_as_slow_from_one_given_up_transfer_on() {
    for mbit in [100, 1000, 10_000] {
        let mut link = Link::default();
        (0..5).for_each(|_| link.transfer(mbit * 12_500, 102.0, false));
        // One packet comes before it is given up.
        link.begin();
        link.ms += 100.0;
        link.moved(1448);
        link.ms += 12.0;
        link.end(true);
        assert!(link.rate() < 0.1);
        // What came agrees with what is known now: both count.
        link.transfer(125_000, 102.0, true);
        assert!((0.5..2.5).contains(&link.rate()), "{}", link.rate());
    }
}

#[test]
fn keeps_what_it_knows_when_a_transfer_is_given_up_that_was_as_fast_as_expected() {
    let mut link = Link::default();
    (0..5).for_each(|_| link.transfer(10_000_000, 102.0, false));
    link.transfer(10_000_000, 112.0, true);
    link.transfer(0, 30.0, true);
    assert!(link.rate() > 90.0);
}

#[test]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few bytes")]
fn that_recovered_is_known_as_such_after_two_short_transfers() {
    let mut link = Link::default();
    (0..5).for_each(|_| link.transfer(300_000, 242.0, false));
    let bytes = GOODPUT_BURST_BYTES_MIN as u64;
    link.transfer(bytes, 4.6, false);
    assert!(link.rate() > 40.0, "{}", link.rate());
    link.transfer(bytes, 4.6, false);
    assert!(link.rate() > 60.0, "{}", link.rate());
}

#[test]
fn is_not_taken_for_slow_because_of_small_transfers() {
    let mut link = Link::default();
    link.transfer(10_000_000, 102.0, false);
    (0..20).for_each(|_| link.transfer(8_000, 3.0, false));
    assert!(link.rate() > 80.0);
}

#[test]
fn bytes_of_many_threads_count_once_each() {
    let goodput = Arc::new(Goodput::default());
    goodput.begin(0.0, false);
    let movers = (0..4).map(|_| {
        let goodput = Arc::clone(&goodput);
        thread::spawn(move || (0..10_000).for_each(|_| goodput.moved(1000)))
    });
    movers.collect::<Vec<_>>().into_iter().for_each(|mover| mover.join().unwrap());
    assert_eq!(goodput.idle_ms(), None, "not noted yet");
    goodput.end(false, false);
    assert!(goodput.rate(None).is_some() && goodput.idle_ms().is_some());
}
