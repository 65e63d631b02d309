//! Owns the records that one side reads in the other's memory: their list in a frame, and how many stand unread on a lane.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::wire::Bytes;
use crate::error::{Error, Result};
use crate::limits::LANE_STANDING_BYTES_MAX;

/// Length of a record's line in the list.
pub const PLACE_BYTES: usize = 20;

/// One record in its owner's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index in the request.
    pub item: u32,
    /// Offset in the memory.
    pub offset: u64,
    /// Length of the record.
    pub bytes: u64,
}

impl Place {
    /// Appends its line to a frame's body.
    pub fn push_to(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.item.to_le_bytes());
        body.extend_from_slice(&self.offset.to_le_bytes());
        body.extend_from_slice(&self.bytes.to_le_bytes());
    }
}

/// Parses the list of a frame, whose length was checked with its header.
pub fn parse_places(body: &[u8]) -> impl Iterator<Item = Place> {
    body.as_chunks::<PLACE_BYTES>().0.iter().map(|line| {
        let [i0, i1, i2, i3, o0, o1, o2, o3, o4, o5, o6, o7, b0, b1, b2, b3, b4, b5, b6, b7] =
            *line;
        Place {
            item: u32::from_le_bytes([i0, i1, i2, i3]),
            offset: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            bytes: u64::from_le_bytes([b0, b1, b2, b3, b4, b5, b6, b7]),
        }
    })
}

/// Records that stand on one lane until its peer has read them, in the order they were named.
#[derive(Default)]
pub struct Standing(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    records: VecDeque<(Arc<dyn Bytes>, Instant)>,
    bytes: usize,
}

impl Standing {
    /// Whether further records may be taken for the lane: it has few of them, so that the lanes share the work.
    pub fn has_room(&self) -> bool {
        self.kept().bytes < LANE_STANDING_BYTES_MAX
    }

    /// Counts a record that is taken for the lane.
    pub fn take(&self, record: &dyn Bytes) {
        self.kept().bytes += record.bytes().len();
    }

    /// Number of records.
    pub fn count(&self) -> usize {
        self.kept().records.len()
    }

    /// Keeps taken records whose names are sent now.
    pub fn keep(&self, records: impl IntoIterator<Item = Arc<dyn Bytes>>) {
        let now = Instant::now();
        self.kept().records.extend(records.into_iter().map(|record| (record, now)));
    }

    /// Releases the first `count` records.
    ///
    /// # Errors
    /// `LANE_FAILED` where fewer stand.
    pub fn release(&self, count: u32) -> Result<()> {
        let mut kept = self.kept();
        let count = count as usize;
        if count > kept.records.len() {
            let text = format!("the peer has read {count} records, {} stand", kept.records.len());
            return Err(Error::lane_failed(text));
        }
        let read: Vec<_> = kept.records.drain(..count).collect();
        kept.bytes -= read.iter().map(|(record, _)| record.bytes().len()).sum::<usize>();
        drop(kept);
        drop(read);
        Ok(())
    }

    /// Checks that no record has stood longer than `most`.
    ///
    /// # Errors
    /// `LANE_FAILED` where the peer does not read.
    pub fn check(&self, most: Duration) -> Result<()> {
        match self.kept().records.front() {
            Some((_, since)) if since.elapsed() > most => {
                let ms = most.as_millis();
                Err(Error::lane_failed(format!("the peer has not read a record for {ms} ms")))
            }
            _ => Ok(()),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were() {
        let places = [(0, 0, 1), (7, 1 << 40, 300), (u32::MAX, u64::MAX, 1 << 32)];
        let places = places.map(|(item, offset, bytes)| Place { item, offset, bytes });
        let mut body = Vec::new();
        for place in &places {
            place.push_to(&mut body);
        }
        assert_eq!(body.len(), 3 * PLACE_BYTES);
        assert_eq!(parse_places(&body).collect::<Vec<_>>(), places);
    }

    #[test]
    fn a_lane_is_full_until_its_peer_has_read() {
        let standing = Standing::default();
        let record: Arc<dyn Bytes> = Arc::new(vec![0; LANE_STANDING_BYTES_MAX / 2]);
        for _ in 0..2 {
            assert!(standing.has_room());
            standing.take(&*record);
            standing.keep([Arc::clone(&record)]);
        }
        assert!(!standing.has_room());
        assert!(standing.check(Duration::from_secs(60)).is_ok());
        assert!(standing.check(Duration::ZERO).unwrap_err().text.contains("not read"));
        standing.release(1).unwrap();
        assert!(standing.has_room() && standing.release(2).is_err());
        standing.release(1).unwrap();
        assert!(standing.check(Duration::ZERO).is_ok() && Arc::strong_count(&record) == 1);
    }
}
