//! The nftables mode.

use portolan_engine::{Error, Step, Table};
use portolan_model::observed::Observed;
use portolan_model::oracle::ModeDifferences;
use portolan_model::{Family, Settings};
use portolan_nftables::{Nftables, Reading, SavedElements, TABLE, preview_of_all};
use portolan_node::config::{Configuration, Mode};
use portolan_node::metrics::ProxyMetrics;

use super::blueprint::PlaneOptions;
use super::{Blueprint, FoundPrograms, Known, Made, ModeDriver, NotCounted, Over, Plane, SharedParts};
use crate::finding::Finding;
use crate::node_settings::folder_of_this_boot;
use crate::settings;

/// The driver of this mode.
pub(super) struct Driver;

impl ModeDriver for Driver {
    fn mode(&self) -> Mode {
        Mode::Nftables
    }

    fn trial(&self, _: &Configuration, family: Family) -> Option<Finding> {
        let tried = Nftables::open(settings::neutral(family)).and_then(|mut dataplane| dataplane.probe());
        tried.err().map(|error| Finding::Kernel { family, reason: error.to_string() })
    }

    fn blueprint(&self, _: &Configuration, _: Family, _: &settings::Node<'_>) -> Blueprint {
        Blueprint::Nftables(NftablesPlaneOptions)
    }

    fn read(&self, family: Family, _: Option<&Known>) -> Result<Option<Observed>, Error> {
        portolan_nftables::read(family)
    }

    fn not_counted(&self, settings: &Settings) -> Option<NotCounted> {
        let off = "the nftables mode counts only if portolan.serviceCounters is true";
        (!settings.counters).then_some(NotCounted::All(off))
    }

    fn preview(
        &self,
        _: &Configuration,
        _: &settings::Node<'_>,
        table: &Table,
        over: Over,
    ) -> Result<Vec<String>, Error> {
        match over {
            Over::Kernel => Nftables::open(table.settings().clone())?.preview(table),
            Over::Nothing => Ok(preview_of_all(table)),
        }
    }

    fn tables(&self, _: &Configuration) -> &'static [&'static str] {
        &[TABLE]
    }

    fn differences(&self, _: &Configuration, _: Family, _: &settings::Node<'_>) -> ModeDifferences {
        ModeDifferences::default()
    }

    fn masquerade(&self, configuration: &Configuration) -> (bool, u8) {
        (configuration.nftables.masquerade_all, configuration.nftables.masquerade_bit)
    }

    fn former(
        &self,
        configuration: &Configuration,
        family: Family,
        _: Option<FoundPrograms>,
    ) -> Option<Plane> {
        if self.is_configured(configuration) {
            return None;
        }
        match Nftables::open(settings::neutral(family)) {
            Ok(dataplane) => Some(Box::new(dataplane)),
            Err(error) => {
                tracing::warn!(%family, %error, "rules of the nftables mode, if there are any, stay");
                None
            }
        }
    }

    fn count_failure(&self, metrics: &ProxyMetrics, family: Family, step: Step) {
        if step == Step::Collection {
            metrics.nftables_cleanup_failed(family);
        } else {
            metrics.nftables_sync_failed(family);
        }
    }
}

/// Begins to read the table of the family whose rules are compared first, if this mode is configured. A reading of another
/// family's table would mostly be in vain: what the first family commits makes it out of date. Without a reading, the first
/// comparison reads.
pub(crate) fn begin_reading(configuration: &Configuration, families: &[Family]) -> Option<(Family, Reading)> {
    if !Driver.is_configured(configuration) {
        forget_saved_elements();
        return None;
    }
    let family = families.first().copied()?;
    match Reading::begin(family, saved_elements(family)) {
        Ok(reading) => Some((family, reading)),
        Err(error) => {
            tracing::debug!(%family, %error, "the kernel's table is read later");
            None
        }
    }
}

/// Returns the file in which the elements of a family are between two runs.
fn saved_elements(family: Family) -> Option<SavedElements> {
    folder_of_this_boot().map(|folder| SavedElements::in_folder(&folder, family))
}

/// Removes the files that [`saved_elements`] returns.
pub(crate) fn forget_saved_elements() {
    for saved in Family::BOTH.into_iter().filter_map(saved_elements) {
        if let Err(error) = saved.remove() {
            tracing::warn!(%error, "a file with the elements of an earlier run stays");
        }
    }
}

/// A data plane of this mode has no options besides its [`Settings`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NftablesPlaneOptions;

impl PlaneOptions for NftablesPlaneOptions {
    fn make(
        &self,
        settings: Settings,
        _: Option<FoundPrograms>,
        shared: &mut SharedParts,
    ) -> Result<Made, Error> {
        let reading = shared.reading.take_if(|(family, _)| *family == settings.family);
        let saved = saved_elements(settings.family);
        let dataplane = Nftables::open(settings)?;
        let dataplane = dataplane.with_reading(reading.map(|(_, reading)| reading)).with_saved(saved);
        let own = Some(dataplane.own());
        Ok(Made { dataplane: Box::new(dataplane), own })
    }
}
