//! Owns reading `MessagePack`: lists of hashes and tokens in one pass, and skipping whatever nobody needs.

/// Why bytes cannot be read.
pub type Result<T> = std::result::Result<T, &'static str>;

const CUT: &str = "it ends in the middle of a value";

/// Reads values from first to last.
pub struct Reader<'a> {
    bytes: &'a [u8],
    /// Place of the next value, in bytes.
    pub at: usize,
}

/// A value of which nothing else is needed; lists and maps are entered, not read.
#[derive(Debug, PartialEq)]
pub enum Value<'a> {
    Nil,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// So many values follow.
    List(usize),
    /// So many pairs follow.
    Map(usize),
    /// An extension type.
    Other,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline]
    fn byte(&mut self) -> Result<u8> {
        let byte = *self.bytes.get(self.at).ok_or(CUT)?;
        self.at += 1;
        Ok(byte)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).ok_or(CUT)?;
        let taken = self.bytes.get(self.at..end).ok_or(CUT)?;
        self.at = end;
        Ok(taken)
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| CUT)
    }

    /// Reads a length or a number of `bytes` bytes.
    fn length(&mut self, bytes: usize) -> Result<usize> {
        let read = self.take(bytes)?.iter();
        Ok(read.fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
    }

    fn text(&mut self, count: usize) -> Result<Value<'a>> {
        let text = std::str::from_utf8(self.take(count)?).map_err(|_| "a text is not UTF-8")?;
        Ok(Value::Text(text))
    }

    /// Reads the next value, or the head of the next list or map.
    pub fn value(&mut self) -> Result<Value<'a>> {
        let kind = self.byte()?;
        Ok(match kind {
            0x00..=0x7f => Value::Int(kind.into()),
            0x80..=0x8f => Value::Map(usize::from(kind & 0x0f)),
            0x90..=0x9f => Value::List(usize::from(kind & 0x0f)),
            0xa0..=0xbf => self.text(usize::from(kind & 0x1f))?,
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool(kind == 0xc3),
            0xc4..=0xc6 => {
                let count = self.length(1 << (kind - 0xc4))?;
                Value::Bytes(self.take(count)?)
            }
            0xca => Value::Float(f32::from_be_bytes(self.fixed()?).into()),
            0xcb => Value::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc => Value::Int(self.byte()?.into()),
            0xcd => Value::Int(u16::from_be_bytes(self.fixed()?).into()),
            0xce => Value::Int(u32::from_be_bytes(self.fixed()?).into()),
            0xcf => Value::Int(u64::from_be_bytes(self.fixed()?).into()),
            0xd0 => Value::Int(i8::from_be_bytes(self.fixed()?).into()),
            0xd1 => Value::Int(i16::from_be_bytes(self.fixed()?).into()),
            0xd2 => Value::Int(i32::from_be_bytes(self.fixed()?).into()),
            0xd3 => Value::Int(i64::from_be_bytes(self.fixed()?).into()),
            0xd9..=0xdb => {
                let count = self.length(1 << (kind - 0xd9))?;
                self.text(count)?
            }
            0xdc | 0xdd => Value::List(self.length(2 << (kind - 0xdc))?),
            0xde | 0xdf => Value::Map(self.length(2 << (kind - 0xde))?),
            0xc7..=0xc9 => {
                let count = self.length(1 << (kind - 0xc7))?;
                self.take(count.saturating_add(1))?;
                Value::Other
            }
            0xd4..=0xd8 => {
                self.take(1 + (1 << (kind - 0xd4)))?;
                Value::Other
            }
            0xc1 => return Err("a value of a type that does not exist"),
            0xe0..=0xff => Value::Int(i8::from_be_bytes([kind]).into()),
        })
    }

    /// Skips one value, however deeply nested.
    pub fn skip(&mut self) -> Result<()> {
        let mut left = 1_usize;
        while left > 0 {
            left -= 1;
            let more = match self.value_of_any_text()? {
                Value::List(count) => count,
                Value::Map(pairs) => pairs.checked_mul(2).ok_or(CUT)?,
                _ => 0,
            };
            left = left.checked_add(more).ok_or(CUT)?;
        }
        Ok(())
    }

    /// Reads as `value`, but takes a text that is not UTF-8 for bytes: nobody reads it.
    fn value_of_any_text(&mut self) -> Result<Value<'a>> {
        let from = self.at;
        match self.value() {
            Err("a text is not UTF-8") => {
                let end = self.at;
                self.at = from;
                Ok(Value::Bytes(&self.bytes[from..end])).inspect(|_| self.at = end)
            }
            read => read,
        }
    }

    /// Reads the head of a list, whose count is bounded by the bytes left, so that a false one allocates nothing.
    pub fn list(&mut self) -> Result<usize> {
        match self.value()? {
            Value::List(count) if count <= self.bytes.len() - self.at => Ok(count),
            Value::List(_) => Err("a list is cut off"),
            _ => Err("a list is missing"),
        }
    }

    /// Reads a list of token ids.
    pub fn tokens(&mut self, into: &mut Vec<u32>) -> Result<()> {
        let count = self.list()?;
        into.reserve(count);
        for _ in 0..count {
            into.push(self.token()?);
        }
        Ok(())
    }

    #[inline]
    fn token(&mut self) -> Result<u32> {
        match self.bytes.get(self.at) {
            Some(&small @ 0..0x80) => {
                self.at += 1;
                Ok(small.into())
            }
            Some(0xcd) => {
                self.at += 1;
                Ok(u16::from_be_bytes(self.fixed()?).into())
            }
            _ => match self.value()? {
                Value::Int(token) => u32::try_from(token).map_err(|_| "a token is out of range"),
                _ => Err("a token is no number"),
            },
        }
    }

    /// Reads a list of hashes.
    pub fn hashes(&mut self, into: &mut Vec<u64>) -> Result<()> {
        let count = self.list()?;
        into.reserve(count);
        for _ in 0..count {
            into.push(self.hash()?);
        }
        Ok(())
    }

    /// Reads one hash: an integer is its low 64 bits already, bytes hold them last.
    #[inline]
    pub fn hash(&mut self) -> Result<u64> {
        if self.bytes.get(self.at) == Some(&0xcf) {
            self.at += 1;
            return Ok(u64::from_be_bytes(self.fixed()?));
        }
        hash_of(&self.value()?).ok_or("a hash is neither a number nor bytes")
    }
}

/// Returns the low 64 bits of a hash.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are meant")]
#[expect(clippy::cast_sign_loss, reason = "the low bits are meant")]
pub fn hash_of(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => Some(*number as u64),
        Value::Bytes(bytes) => bytes.last_chunk::<8>().map(|low| u64::from_be_bytes(*low)),
        _ => None,
    }
}
