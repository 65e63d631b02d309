//! Owns the opening of a region: its file is checked and mapped, or created completely before it gets its name.

use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use tierkv_core::error::{Code, Error, Result};

use crate::dax::{Described, described};
use crate::file::{
    MAKER_BYTE, Place, check_file, failed, folder_of, give_to, lock_byte, unlock_bytes,
};
use crate::layout::Layout;
use crate::lines;
use crate::mapping::Mapping;
use crate::region::Region;
use crate::superblock;
use crate::visibility::Coherence;

/// Options of creating a region, and of mapping it here.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Most bytes of a region created in a file; 0: none is created. A device is used whole.
    pub max_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// How caches are kept coherent.
    pub coherence: Coherence,
    /// Preferred address of the mapping; 0: any. Processes need not agree.
    pub address: usize,
    /// Number of this host among those that share the region; `None`: it is the only one.
    pub host: Option<u64>,
    /// Group whose users share the region; `None`: this user alone.
    pub group: Option<u32>,
}

/// Opens the region at `path` and joins it; creates it where there is none.
///
/// # Errors
/// `ARENA_FAILED` naming the path and the problem, `BAD_ARGUMENT` for sizes.
pub fn open(path: &Path, options: &Options) -> Result<Region<Mapping>> {
    let (mapping, bytes) = map(path, options)?;
    let region = Region::join(mapping, bytes)
        .map_err(|error| Error::new(error.code, format!("{}: {}", path.display(), error.text)))?;
    region.fabric().joined();
    Ok(region)
}

/// Like `open` without joining; returns the memory and its length.
///
/// # Errors
/// As `open`.
pub fn map(path: &Path, options: &Options) -> Result<(Mapping, u64)> {
    map_as(path, options, described)
}

fn map_as(path: &Path, options: &Options, described: Described) -> Result<(Mapping, u64)> {
    if options.coherence == Coherence::Clflush && !lines::EXIST {
        return Err(Error::bad_argument(
            "coherence \"clflush\" exists on x86-64 only: take \"hardware\"",
        ));
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) if options.max_bytes == 0 => {
            return Err(failed(
                path.display(),
                "there is no region: a sidecar makes it as it starts; start the one that names it, or restart it if it runs",
            ));
        }
        Err(Errno::ACCESS) => {
            let text = "another user has it: name another, or share one by [cluster] group";
            return Err(failed(path.display(), text));
        }
        Err(Errno::NOENT) => {
            create(path, options)?;
            rustix::fs::open(path, flags, Mode::empty())
        }
        opened => opened,
    }
    .map_err(|errno| failed(path.display(), errno))?;
    let Place { bytes: all, is_device } = check_file(path, &fd, options.group, described)?;
    let mut mapping = Mapping::new(path, fd, all, options)?;
    let bytes = if is_device { settle(path, &mapping, all, options)? } else { all };
    let fix = if is_device { "; `daxio -z -o` and its name empties a device" } else { "" };
    check_hosts(&mapping, bytes, options.host).map_err(|error| {
        Error::new(error.code, format!("{}: {}{fix}", path.display(), error.text))
    })?;
    if let Some(number) = options.host {
        let keeps = mapping.again(path, options)?;
        mapping.sit(number, keeps)?;
    }
    Ok((mapping, bytes))
}

/// Checks that this process uses the region's kind of lock.
fn check_hosts(mapping: &Mapping, bytes: u64, host: Option<u64>) -> Result<()> {
    let layout = superblock::layout_of(mapping, bytes)?;
    let text = match host {
        Some(_) if layout.hosts == 0 => {
            "the region was made for one machine: remove the file, or write no [cluster] host"
        }
        None if layout.hosts > 0 => {
            "several machines have this region: write [cluster] host, another number on each"
        }
        Some(number) if number >= layout.hosts => "there is no host of that number",
        _ => return Ok(()),
    };
    Err(Error::new(Code::ArenaFailed, text))
}

/// Returns the bytes of a device's region, which is created where there is none. A lock on the device's node serialises
/// this, because a device cannot get its name only once it is complete.
fn settle(path: &Path, memory: &Mapping, all: u64, options: &Options) -> Result<u64> {
    let layout = (options.max_bytes > 0).then(|| cut(all, options)).transpose()?;
    lock_byte(path.display(), memory.fd(), MAKER_BYTE)?;
    let (bytes, _) = superblock::settle(memory, layout.as_ref());
    unlock_bytes(memory.fd(), MAKER_BYTE, 1);
    Ok(bytes.min(all))
}

fn cut(max_bytes: u64, options: &Options) -> Result<Layout> {
    let layout = Layout::cut(max_bytes, options.chunk_bytes)?;
    Ok(if options.host.is_some() { layout.between_hosts() } else { layout })
}

/// Creates a region without a name, and links it once it is complete. If another process is faster, its region is used.
fn create(path: &Path, options: &Options) -> Result<()> {
    let layout = cut(options.max_bytes, options)?;
    let in_words = |errno| failed(path.display(), errno);
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(folder_of(path), flags, Mode::RUSR | Mode::WUSR).map_err(in_words)?;
    if let Some(group) = options.group {
        give_to(path, &fd, group)?;
    }
    // Allocates all memory now, because a page missing later would raise SIGBUS.
    rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, layout.region_bytes)
        .map_err(in_words)?;
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mapping = Mapping::new(path, fd, layout.region_bytes, options)?;
    superblock::format(&mapping, &layout);
    match rustix::fs::linkat(CWD, name, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(in_words(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all, remove_dir_all, write};
    use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
    use std::path::PathBuf;

    use rustix::fs::Stat;
    use tierkv_core::key::RecordKey;

    use super::*;
    use crate::flushes::Label;
    use crate::region::Offer;

    const OPTIONS: Options = Options {
        max_bytes: 1,
        chunk_bytes: 16_384,
        coherence: Coherence::Hardware,
        address: 0,
        host: None,
        group: None,
    };
    const MIB: u64 = 1 << 20;
    const PAGE_BYTES: usize = 4096;

    /// A file that stands for a device, beside the description that sysfs would have.
    struct Fake(PathBuf);

    impl Fake {
        fn new(of: &str, content: &[u8], bytes: u64) -> Self {
            let fake = Self(beside(of));
            create_dir_all(&fake.0).expect("a folder");
            let made = File::options().write(true).create_new(true).mode(0o600).open(fake.path());
            let device = made.expect("a file");
            device.set_len(bytes).expect("room");
            device.write_all_at(content, 0).expect("written");
            symlink("../../../bus/dax", fake.0.join("subsystem")).expect("a link");
            fake.says("size", &bytes.to_string());
            fake.says("align", "2097152");
            fake
        }

        fn path(&self) -> PathBuf {
            self.0.join("dax0.0")
        }

        fn says(&self, name: &str, text: &str) {
            write(self.0.join(name), format!("{text}\n")).expect("written");
        }

        fn open(&self, options: &Options, described: Described) -> Result<Region<Mapping>> {
            let (mapping, bytes) = map_as(&self.path(), options, described)?;
            Region::join(mapping, bytes)
        }

        fn refusal(&self, options: &Options, described: Described) -> String {
            self.open(options, described).err().expect("refused").text
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = remove_dir_all(&self.0);
        }
    }

    /// Folder of a file that a process opens only once.
    fn beside(of: &str) -> PathBuf {
        format!("/dev/shm/tierkv-test-{of}-{}", std::process::id()).into()
    }

    #[test]
    fn a_device_is_taken_whole_and_made_once() {
        let described = |_: &Stat| Some(beside("dax-whole"));
        // The bytes behind the first page are arbitrary.
        let mut content = vec![0xff; usize::try_from(4 * MIB).expect("small")];
        content[..PAGE_BYTES].fill(0);
        let fake = Fake::new("dax-whole", &content, 4 * MIB);
        let looks = Options { max_bytes: 0, ..OPTIONS };
        assert!(fake.refusal(&looks, described).contains("no region"), "who makes none");
        let hash = [7; 32];
        let key = RecordKey { namespace: hash, block_hash: hash, group: 0, shard: 0 };
        let first = fake.open(&OPTIONS, described).expect("made");
        let bytes = first.layout().region_bytes;
        // The region is smaller than the device, because chunks are whole.
        assert!(bytes < 4 * MIB && bytes > 4 * MIB - 2 * 16_384, "{bytes}");
        let audit = first.audit().expect("read");
        assert!(audit.is_sound() && audit.ready == 0, "{audit:?}");
        let Ok(Offer::Wanted(reservation)) = first.reserve(&key, 5000, Label::default()) else {
            panic!("it is empty")
        };
        reservation.publish().expect("there");
        let second = fake.open(&looks, described).expect("there");
        assert_eq!(second.look_up(&[key]).expect("read"), [true]);
        assert_eq!(second.layout(), first.layout());
        let host = Options { host: Some(0), ..OPTIONS };
        let text = fake.refusal(&host, described);
        assert!(text.contains("one machine") && text.contains("daxio"), "{text}");
    }

    #[test]
    fn a_device_that_has_something_on_it_is_left_as_it_is() {
        let described = |_: &Stat| Some(beside("dax-used"));
        let mut content = [0; PAGE_BYTES];
        content[PAGE_BYTES - 1] = 1;
        let fake = Fake::new("dax-used", &content, 4 * MIB);
        let text = fake.refusal(&OPTIONS, described);
        assert!(text.contains("no region") && text.contains("daxio"), "{text}");
        let all = std::fs::read(fake.path()).expect("read");
        assert!(all[..PAGE_BYTES] == content && all[PAGE_BYTES..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_device_of_another_kind_or_size_is_refused_by_name() {
        let described = |_: &Stat| Some(beside("dax-size"));
        let fake = Fake::new("dax-size", &[], 4 * MIB);
        let refused = |what: &str| {
            let text = fake.refusal(&OPTIONS, described);
            assert!(text.contains(what) && text.contains(&fake.0.display().to_string()), "{text}");
        };
        fake.says("size", "4198400");
        refused("4198400 bytes are no whole pages of 2097152");
        fake.says("size", "much");
        refused("\"much\" is no count of bytes");
        fake.says("size", "4194304");
        fake.says("align", "0");
        refused("\"0\" is no count");
        std::fs::remove_file(fake.0.join("subsystem")).expect("gone");
        symlink("../../../class/mem", fake.0.join("subsystem")).expect("a link");
        refused("not of DAX");
        let null = map(Path::new("/dev/null"), &OPTIONS).expect_err("refused").text;
        assert!(null.contains("/dev/null: a device, but not of DAX"), "{null}");
    }
}
