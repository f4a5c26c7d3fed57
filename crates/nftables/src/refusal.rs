//! Messages that the kernel refuses, in words: for the log, and for the error of a start on a kernel without a module.

use portolan_sock::CommitError;
use portolan_wire::nftables::NftablesEvent;
use portolan_wire::{Batch, Frame};

use super::layout::Kind;
use portolan_engine::dataplane::Error;

/// Logs the first messages that the kernel refused.
pub(super) fn log_refusals(batch: &Batch, error: &CommitError) {
    let CommitError::Refused(refusals) = error else { return };
    for refusal in refusals.iter().take(3) {
        let message = batch.frame(refusal.sequence).map(|frame| describe(&frame));
        tracing::error!(%refusal, message, "the kernel refused a message of a transaction");
    }
}

/// Returns the error for a mode whose first messages the kernel refuses: what it refused, and the modules that the mode needs.
pub(super) fn unsupported(kind: &Kind, batch: &Batch, refusals: &[portolan_sock::Refusal]) -> Error {
    let Some(first) = refusals.first() else {
        return Error::Unsupported { mode: kind.mode, missing: "nf_tables".into() };
    };
    let message = batch.frame(first.sequence).map(|frame| describe(&frame)).unwrap_or_default();
    let missing = format!(
        "it refused {message} ({}). Kernel 5.13 or newer is needed, with the modules nf_tables, {}",
        first.errno, kind.modules
    );
    Error::Unsupported { mode: kind.mode, missing }
}

/// Returns a message in words, for the log.
fn describe(frame: &Frame<'_>) -> String {
    match NftablesEvent::decode(frame) {
        Ok(NftablesEvent::NewTable(table)) => format!("table {}", table.name),
        Ok(NftablesEvent::NewChain(chain)) => format!("chain {}", chain.name),
        Ok(NftablesEvent::NewRule(rule)) => {
            let text = format!("{:?}", rule.expressions);
            format!("a rule of chain {}: {}", rule.chain, text.chars().take(400).collect::<String>())
        }
        Ok(NftablesEvent::NewSet(set)) => format!("set {}", set.name),
        Ok(NftablesEvent::NewElements(list)) => format!("new elements of {}", list.set),
        Ok(NftablesEvent::DeleteElements(list)) => format!("deleted elements of {}", list.set),
        Ok(other) => format!("{other:?}").chars().take(200).collect(),
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use portolan_sock::Errno;
    use portolan_wire::nftables::Transaction;

    use super::super::layout::{CAPTURE, TRANSLATE};
    use super::*;

    #[test]
    fn missing_modules_are_those_of_the_mode() {
        let mut transaction = Transaction::begin(1, None);
        transaction.delete_table(portolan_wire::nftables::Family::IPV4, "t");
        let batch = transaction.finish().unwrap();
        let refusal = portolan_sock::Refusal {
            sequence: 2,
            errno: Errno::ENOENT,
            text: None,
            offset: None,
            missing: None,
        };
        let text = |kind| unsupported(kind, &batch, std::slice::from_ref(&refusal)).to_string();
        let (capture, plain) = (text(CAPTURE), text(TRANSLATE));
        assert!(
            capture.contains("the userspace mode") && capture.contains("nft_socket and nft_tproxy"),
            "{capture}"
        );
        assert!(plain.contains("the nftables mode") && plain.contains("nft_masq, nft_nat"), "{plain}");
    }
}
