//! Owns what memory around a region's own passes on to it unchanged, in tests that count, end or disturb the rest.

/// The operations that none of these tests changes; the inner memory is the field `memory`.
macro_rules! delegated {
    () => {
        fn coherence(&self) -> tierkv_shm::visibility::Coherence {
            self.memory.coherence()
        }
        fn write_back(&self, rule: tierkv_shm::visibility::Rule, at: u64, bytes: u64) {
            self.memory.write_back(rule, at, bytes);
        }
        fn fence(&self, rule: tierkv_shm::visibility::Rule) {
            self.memory.fence(rule);
        }
        fn invalidate(&self, rule: tierkv_shm::visibility::Rule, at: u64, bytes: u64) {
            self.memory.invalidate(rule, at, bytes);
        }
        fn claim(&self) -> tierkv_core::error::Result<Option<u64>> {
            self.memory.claim()
        }
        fn is_vacant(&self, member: u64) -> bool {
            self.memory.is_vacant(member)
        }
    };
}
