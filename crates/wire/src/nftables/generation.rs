//! The generation: a number that every commit of any program increments.

use crate::nfnetlink;
use crate::{DecodeError, Frame};

const OBJECT: &str = "nf_tables generation";
const NFTA_GEN_ID: u16 = 1;
const NFTA_GEN_PROC_PID: u16 = 2;
const NFTA_GEN_PROC_NAME: u16 = 3;

/// The generation of the rules of a network namespace, and the process that committed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generation {
    /// The number of the generation.
    pub id: u32,
    /// Process that committed, or that sent the request.
    pub process: Option<u32>,
    /// Name of that process.
    pub process_name: Option<String>,
}

impl Generation {
    /// Reads the answer to [`request::generation`](super::request::generation), or the last notification of a
    /// commit.
    pub fn decode(frame: &Frame<'_>) -> Result<Self, DecodeError> {
        let map = frame.attributes(OBJECT, nfnetlink::HEADER_LENGTH)?.by_kind::<4>()?;
        Ok(Self {
            id: map.required(NFTA_GEN_ID)?.u32_be()?,
            process: map.u32_be(NFTA_GEN_PROC_PID)?,
            process_name: map.string(NFTA_GEN_PROC_NAME),
        })
    }
}
