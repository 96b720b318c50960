//! Filters in a file, while the process is stopped.
//!
//! The file is only as good as its last bit: a filter that lost one would say "no" of a key that it
//! was told of, which costs a question, and one that is of another shape or seed would say nothing
//! true at all. So whatever does not fit exactly is not read, and the filter is filled anew.

use super::{Filter, Generation, Generations, Shape};
use crate::domain::RoleName;
use fastbloom::AtomicBloomFilter;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

/// The first bytes. The number changes with the layout and with the library's hashes.
const MAGIC: &[u8; 16] = b"orderonce bloom1";

/// Bytes of the hash at the end.
const HASH: usize = 32;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is of another program or version.
    #[error("is no filter of this version")]
    Foreign,
    /// Its last part is missing or some of it was changed.
    #[error("is damaged")]
    Damaged,
    /// It was made for another number of keys, rate of false positives or set of roles.
    #[error("is of another shape")]
    OtherShape,
}

impl Filter {
    /// Writes it to a file, in one go: after a crash the file is the old one or the new one.
    ///
    /// # Errors
    /// [`io::Error`].
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let new = path.with_extension("new");
        let file = File::create(&new)?;
        let mut out = Hashing {
            out: BufWriter::new(file),
            hash: Sha256::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&self.seed.to_le_bytes())?;
        out.write_all(&self.shape.to_bytes())?;
        for (role, of_role) in &self.roles {
            let of_role = of_role.read().unwrap_or_else(PoisonError::into_inner);
            let name = role.as_str().as_bytes();
            out.number(u64::try_from(name.len()).unwrap_or(u64::MAX))?;
            out.write_all(name)?;
            out.generation(Some(&of_role.newer))?;
            out.generation(of_role.older.as_ref())?;
        }
        let Hashing { mut out, hash } = out;
        out.write_all(&hash.finalize())?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        std::fs::rename(new, path)
    }

    /// Reads it from a file.
    ///
    /// # Errors
    /// [`Unfit`] if it was not written by [`Self::save`] for this shape and these roles.
    pub fn load(path: &Path, shape: Shape, roles: &[RoleName]) -> Result<Self, Unfit> {
        let mut bytes = Vec::new();
        File::open(path)?.read_to_end(&mut bytes)?;
        if !bytes.starts_with(MAGIC) {
            return Err(Unfit::Foreign);
        }
        let split = bytes.len().checked_sub(HASH).ok_or(Unfit::Damaged)?;
        let (content, hash) = bytes.split_at(split);
        if hash != &Sha256::digest(content)[..] {
            return Err(Unfit::Damaged);
        }
        let mut rest = content.get(MAGIC.len()..).ok_or(Unfit::Damaged)?;
        let rest = &mut rest;
        let seed = u128::from_le_bytes(*take(rest)?);
        if shape.to_bytes() != *take(rest)? {
            return Err(Unfit::OtherShape);
        }
        let mut of_roles = BTreeMap::new();
        while !rest.is_empty() {
            let length = usize::try_from(number(rest)?).map_err(|_| Unfit::Damaged)?;
            let name = take_some(rest, length)?;
            let name = std::str::from_utf8(name).map_err(|_| Unfit::Damaged)?;
            let newer = generation(rest, shape, seed)?.ok_or(Unfit::Damaged)?;
            let older = generation(rest, shape, seed)?;
            let generations = RwLock::new(Generations { newer, older });
            of_roles.insert(RoleName::new(name.to_owned()), generations);
        }
        if !of_roles.keys().eq(roles.iter().collect::<BTreeSet<_>>()) {
            return Err(Unfit::OtherShape);
        }
        Ok(Self {
            shape,
            seed,
            roles: of_roles,
            first: AtomicU64::new(0),
            mistaken: AtomicU64::new(0),
        })
    }
}

impl Shape {
    fn to_bytes(self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..8].copy_from_slice(&self.expected.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.false_positives.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.bits.to_le_bytes());
        bytes[24..].copy_from_slice(&self.hashes.to_le_bytes());
        bytes
    }
}

/// Hashes what it writes.
struct Hashing {
    out: BufWriter<File>,
    hash: Sha256,
}

impl Hashing {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hash.update(bytes);
        self.out.write_all(bytes)
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        self.write_all(&number.to_le_bytes())
    }

    /// One more than its keys, or 0 for none; then its bits.
    fn generation(&mut self, generation: Option<&Generation>) -> io::Result<()> {
        let Some(generation) = generation else {
            return self.number(0);
        };
        self.number(generation.keys.load(Ordering::Relaxed).saturating_add(1))?;
        for word in generation.bits.iter() {
            self.number(word)?;
        }
        Ok(())
    }
}

fn generation(rest: &mut &[u8], shape: Shape, seed: u128) -> Result<Option<Generation>, Unfit> {
    let Some(keys) = number(rest)?.checked_sub(1) else {
        return Ok(None);
    };
    let bytes = usize::try_from(shape.bytes()).map_err(|_| Unfit::Damaged)?;
    let (words, _) = take_some(rest, bytes)?.as_chunks();
    let words = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let bits = AtomicBloomFilter::from_vec(words).seed(&seed);
    Ok(Some(Generation {
        bits: bits.hashes(shape.hashes),
        keys: AtomicU64::new(keys),
    }))
}

fn number(rest: &mut &[u8]) -> Result<u64, Unfit> {
    Ok(u64::from_le_bytes(*take(rest)?))
}

fn take<'b, const N: usize>(rest: &mut &'b [u8]) -> Result<&'b [u8; N], Unfit> {
    let (taken, others) = rest.split_first_chunk().ok_or(Unfit::Damaged)?;
    *rest = others;
    Ok(taken)
}

fn take_some<'b>(rest: &mut &'b [u8], length: usize) -> Result<&'b [u8], Unfit> {
    let (taken, others) = rest.split_at_checked(length).ok_or(Unfit::Damaged)?;
    *rest = others;
    Ok(taken)
}
