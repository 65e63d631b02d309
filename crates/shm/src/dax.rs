//! Owns the description of a DAX device in sysfs, because the device has no file length and is mapped in pages of its own size.

use std::fs::{read_link, read_to_string};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Stat, major, minor};
use tierkv_core::error::Result;

use crate::file::failed;

/// Finds the sysfs folder of a character device; `None` for another file. Tests replace it.
pub(crate) type Described = fn(&Stat) -> Option<PathBuf>;

/// Finds the folder by the device's numbers, because its name is arbitrary.
pub(crate) fn described(stat: &Stat) -> Option<PathBuf> {
    let number = stat.st_rdev;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    is_device.then(|| format!("/sys/dev/char/{}:{}", major(number), minor(number)).into())
}

/// Length of the device in bytes.
pub(crate) fn bytes_of(path: &Path, described: &Path) -> Result<u64> {
    let kind = read_link(described.join("subsystem"));
    if !kind.is_ok_and(|kind| kind.ends_with("dax")) {
        return Err(failed(
            path.display(),
            "a device, but not of DAX: name a file, or /dev/daxX.Y",
        ));
    }
    let number = |name| {
        let file = described.join(name);
        let text = read_to_string(&file).map_err(|error| failed(file.display(), error))?;
        let number = text.trim().parse::<u64>().ok().filter(|number| *number > 0);
        number.ok_or_else(|| {
            failed(file.display(), format!("{:?} is no count of bytes", text.trim()))
        })
    };
    let (bytes, page) = (number("size")?, number("align")?);
    if bytes.is_multiple_of(page) {
        return Ok(bytes);
    }
    let text = format!("{bytes} bytes are no whole pages of {page}: give it such a size by daxctl");
    Err(failed(path.display(), text))
}
