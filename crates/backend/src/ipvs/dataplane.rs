//! The [`Dataplane`] of the IPVS mode: keeps track of the kernel's state and writes to it in order.

use std::sync::Arc;
use std::time::Instant;

use portolan_model::{Change, Forwarding, IpvsScheduler, ServicePortName, Settings};

use super::desired::{Desired, Touched};
use super::difference::{Difference, Operation, WriteSettings};
use super::draining::{Draining, UptimeSecs};
use super::kernel::{Kernel, first_refusal};
use super::refusal::{self, Refusals, Refused};
use super::retire::Retiring;
use super::rules::{self, Part, Rules};
use super::{Error, Meter, Options};
use crate::dataplane::{Chains, Commit, Dataplane, HealthCheckPort, Refusal};
use crate::iptables::Programs;
use crate::latest::Latest;

/// The data plane that programs the Services of one family as virtual servers.
#[derive(Debug)]
pub struct Ipvs {
    pub(super) kernel: Kernel,
    pub(super) programs: Programs,
    pub(super) options: Options,
    pub(super) rules: Rules,
    pub(super) desired: Desired,
    pub(super) draining: Draining,
    meter: Arc<Meter>,
    /// True during the comparison that follows a refusal.
    pub(super) is_second_attempt: bool,
    /// What the kernel refused again.
    pub(super) refusals: Refusals,
    /// During a comparison, the members that did not fit into a set.
    pub(super) overflow: Vec<Refused>,
    /// Schedulers that Services ask for and the kernel lacks.
    pub(super) missing: Vec<IpvsScheduler>,
    pub(super) state: State,
    /// Index of the network device; 0 before the first comparison.
    pub(super) device: u32,
    /// Health-check node ports that have not been passed to `desired`.
    health_checks: Latest<(Arc<str>, Arc<str>), HealthCheckPort>,
    pub(super) retiring: Option<Retiring>,
}

/// How the kernel's state relates to the desired one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing has been compared yet: changes are only stored.
    Waiting,
    /// The kernel is in sync.
    InSync,
    /// A write failed, or settings changed: a comparison is needed.
    Unknown,
}

impl Ipvs {
    /// Opens sockets in the network namespace of this thread. Changes nothing in the kernel. See
    /// [`available`](super::available) for features that the kernel may lack.
    pub fn open(programs: Programs, settings: Settings, options: Options) -> Result<Self, crate::Error> {
        let kernel = Kernel::open(settings.family)?.ok_or_else(|| crate::Error::Unsupported {
            mode: "ipvs",
            missing: "IPVS is missing (module ip_vs, CONFIG_IP_VS)".to_owned(),
        })?;
        Ok(Self {
            kernel,
            programs,
            rules: Rules::new(&settings),
            desired: Desired::new(settings, options.exclude.clone()),
            options,
            draining: Draining::default(),
            meter: Arc::default(),
            is_second_attempt: false,
            refusals: Refusals::default(),
            overflow: Vec::new(),
            missing: Vec::new(),
            state: State::Waiting,
            device: 0,
            health_checks: Latest::default(),
            retiring: None,
        })
    }

    /// Reports the metrics of this data plane in `meter`.
    #[must_use]
    pub fn with_meter(self, meter: Arc<Meter>) -> Self {
        Self { meter, ..self }
    }

    /// Sets the options. The next comparison writes them.
    pub fn set_options(&mut self, options: Options) {
        if self.options != options {
            self.desired.set_exclude(&options.exclude);
            self.options = options;
            self.mark_unknown();
        }
    }

    /// Returns the number of draining endpoints.
    pub fn draining(&self) -> usize {
        self.draining.len()
    }

    pub(super) fn mark_unknown(&mut self) {
        if self.state == State::InSync {
            self.state = State::Unknown;
        }
    }

    fn remember(&mut self, changes: &[Change]) -> Touched {
        let mut touched = Touched::default();
        self.desired.apply(changes, &mut touched);
        let health_checks = self.health_checks.take();
        self.desired.open_health_check_ports(&health_checks, &mut touched);
        touched
    }

    pub(super) fn manner(&self) -> WriteSettings<'_> {
        WriteSettings {
            default: self.options.scheduler,
            missing: self.missing.as_slice(),
            drained_by: UptimeSecs::now().after(self.options.drain),
        }
    }

    /// Writes a change. Returns `None` if everything has to be compared instead.
    fn change_or_compare(&mut self, touched: &Touched) -> Result<Option<Commit>, Error> {
        // In `excludeCIDRs`, a comparison first finds out whether another program has the virtual server.
        let mut new = touched.servers.iter().filter(|(_, former)| former.is_none());
        if new.any(|(key, _)| self.options.excludes(key.address)) || self.node_changed()? {
            return Ok(None);
        }
        let commit = self.change(touched)?;
        // If members of a full set go, Service ports that were left out may fit: only a comparison adds them.
        Ok((!self.refusals.makes_room(touched, &self.desired)).then_some(commit))
    }

    /// Writes a change.
    fn change(&mut self, touched: &Touched) -> Result<Commit, Error> {
        let difference = Difference::of_change(touched, &self.desired, &self.draining, self.manner());
        let commit = self.write(&difference, None)?;
        self.note_draining(&difference);
        Ok(commit)
    }

    /// Writes in an order in which every packet finds what it needs: first the members of sets, then rules, virtual
    /// servers, and last the addresses that bring packets to them. Removals go in the reverse order.
    pub(super) fn write(
        &mut self,
        difference: &Difference,
        rules: Option<&rules::Present>,
    ) -> Result<Commit, Error> {
        let started = Instant::now();
        let restore = |part| rules.map(|present| self.rules.restore(present, part)).unwrap_or_default();
        let (before, after) = (restore(Part::Before), restore(Part::After));
        let device = self.device;
        let (overflow, mut refused): (Vec<Refused>, Vec<Refused>) = self
            .kernel
            .add(&difference.add)?
            .into_iter()
            .partition(|refused| matches!(refused.error, Error::Full { .. }));
        if let Some(set) = overflow.iter().find_map(Refused::set) {
            self.overflow = overflow;
            return Err(Error::Full { set: set.name(self.desired.settings().family) });
        }
        self.restore(&before)?;
        refused.extend(self.kernel.operate(&difference.servers)?);
        refused.extend(self.kernel.bind(device, &difference.bind)?);
        self.restore(&after)?;
        refused.extend(self.kernel.operate(&difference.gone)?);
        refused.extend(self.kernel.unbind(device, &difference.unbind)?);
        refused.extend(self.kernel.remove(&difference.remove)?);
        self.judge(refused, rules.is_some())?;
        let lines = before.lines().chain(after.lines()).filter(|line| line.starts_with('-')).count();
        Ok(Commit {
            elements: difference.len(),
            objects: lines,
            bytes: self.kernel.take_bytes().saturating_add(before.len()).saturating_add(after.len()),
            kernel: started.elapsed(),
            full: false,
            refused: self.refused(),
        })
    }

    /// Reports what the kernel refuses again at a comparison, once. Any other refusal is an error, upon which
    /// everything is compared.
    fn judge(&mut self, refused: Vec<Refused>, is_all: bool) -> Result<(), Error> {
        let (lasting, surprises): (Vec<Refused>, _) =
            refused.into_iter().partition(|refused| self.is_second_attempt && refused.error.is_of_object());
        first_refusal(surprises)?;
        if is_all {
            self.refusals.take(&lasting, &self.desired);
        }
        Ok(())
    }

    pub(super) fn note_draining(&mut self, difference: &Difference) {
        for (key, place) in &difference.settled {
            self.draining.remove(key, *place);
        }
        for (key, place, until) in &difference.draining {
            self.draining.add(*key, *place, *until);
        }
        self.meter.set_draining(self.draining.len());
    }

    /// Returns the Service ports that are not programmed completely.
    fn refused(&self) -> Vec<Refusal> {
        let mut refused = self.refusals.of(&self.desired);
        if !self.missing.is_empty() {
            let lacks = |forwarding: &Forwarding| {
                forwarding.ipvs_scheduler.is_some_and(|scheduler| self.missing.contains(&scheduler))
            };
            let names = self.desired.names(lacks);
            refused.extend(names.map(|name| Refusal::whole(name.clone(), refusal::SCHEDULER)));
        }
        refused
    }

    pub(super) fn present_rules(&self) -> Result<rules::Present, crate::Error> {
        let mut present = rules::Present::default();
        self.programs.save(&[], |line| present.line(line))?;
        Ok(present)
    }

    pub(super) fn restore(&self, text: &str) -> Result<(), Error> {
        if !text.is_empty() {
            self.programs.restore(|out| out.write_str(text)).map_err(Error::Rules)?;
        }
        Ok(())
    }

    /// Returns true if the addresses of this node have changed. Other addresses come and go with pods and do not
    /// count.
    pub(super) fn node_changed(&mut self) -> Result<bool, Error> {
        if !self.kernel.addresses_changed(self.device)? {
            return Ok(false);
        }
        let addresses = self.kernel.addresses(self.device)?;
        Ok(!self.desired.has_node_addresses(&addresses.node))
    }

    /// Removes draining endpoints whose connections have ended or whose deadline has passed.
    fn drain(&mut self) -> Result<(), Error> {
        let now = UptimeSecs::now();
        let mut done = Vec::new();
        for (key, places) in self.draining.iter() {
            let present = self.kernel.real_servers(key)?;
            for (place, until) in places {
                let connections = present
                    .iter()
                    .find(|real| real.place == *place)
                    .map_or(0, |real| real.active.saturating_add(real.inactive));
                if connections == 0 || *until <= now {
                    done.push((*key, *place));
                }
            }
        }
        let operations: Vec<_> =
            done.iter().map(|(key, place)| Operation::DeleteReal(*key, *place)).collect();
        first_refusal(self.kernel.operate(&operations)?)?;
        for (key, place) in done {
            self.draining.remove(&key, place);
        }
        self.meter.set_draining(self.draining.len());
        Ok(())
    }
}

impl Dataplane for Ipvs {
    fn mode(&self) -> &'static str {
        "ipvs"
    }

    fn apply(&mut self, changes: &[Change]) -> Result<Commit, crate::Error> {
        let touched = self.remember(changes);
        match self.state {
            State::Waiting => return Ok(Commit::default()),
            State::InSync => match self.change_or_compare(&touched) {
                Ok(Some(commit)) => return Ok(commit),
                // The node has other addresses, another program has the virtual server, a scheduler is missing, or a
                // set is or was full.
                Ok(None) | Err(Error::Refused { .. } | Error::Scheduler { .. } | Error::Full { .. }) => {
                    self.mark_unknown();
                }
                Err(error) => {
                    self.mark_unknown();
                    return Err(error.into());
                }
            },
            State::Unknown => {}
        }
        self.load()
    }

    fn compare(&mut self, changes: &[Change]) -> Result<Commit, crate::Error> {
        self.remember(changes);
        self.state = State::Unknown;
        self.has_new_scheduler()?;
        self.load()
    }

    fn open_health_check_ports(&mut self, health_checks: &[HealthCheckPort]) -> bool {
        for check in health_checks {
            self.health_checks.insert((check.namespace.clone(), check.service.clone()), check.clone());
        }
        !self.health_checks.is_empty()
    }

    fn configure(&mut self, settings: Settings) {
        if self.desired.configure(settings) {
            self.rules = Rules::new(self.desired.settings());
            self.mark_unknown();
        }
    }

    fn collect(&mut self) -> Result<bool, crate::Error> {
        if self.state == State::InSync
            && let Err(error) = self.drain()
        {
            self.mark_unknown();
            return Err(error.into());
        }
        Ok(self.needs_collection())
    }

    fn needs_collection(&self) -> bool {
        !self.draining.is_empty()
    }

    fn needs_checks(&self) -> bool {
        true
    }

    fn is_intact(&mut self) -> Result<bool, crate::Error> {
        if self.state != State::InSync {
            return Ok(true);
        }
        let intact = self.is_there()?;
        if !intact {
            self.mark_unknown();
        }
        Ok(intact)
    }

    /// Removes everything at once. Connections end.
    fn remove(&mut self) -> Result<(), crate::Error> {
        self.remove_all()
    }

    fn chains(&self) -> Option<Chains> {
        let family = self.desired.settings().family;
        Some(Chains { variant: self.programs.variant(), family, uses: rules::uses })
    }

    /// Removes rules. Virtual servers stay as long as they have connections.
    fn retire(&mut self, kept: Option<Chains>) -> Result<bool, crate::Error> {
        // Connections of a retiring mode do not count as draining endpoints.
        self.meter.set_draining(0);
        let mut retiring = self.retiring.take().unwrap_or_else(|| Retiring::new(self.options.drain));
        let outcome = self.retire_step(&mut retiring, kept);
        self.retiring = Some(retiring);
        outcome
    }

    fn next_attempt(&self) -> Option<Instant> {
        self.retiring.as_ref().and_then(Retiring::due)
    }

    fn forwardings(&self) -> Box<dyn Iterator<Item = (&Arc<ServicePortName>, &Arc<Forwarding>)> + '_> {
        Box::new(self.desired.forwardings())
    }
}
