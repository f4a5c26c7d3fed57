//! The report as lines for people.

use crate::report::{Action, Against, FamilyPlan, Report, ServiceChange};

/// Lines that end up on a terminal. Control characters of texts from outside are replaced by spaces.
#[derive(Debug, Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, line: &str) {
        self.0.extend(line.chars().map(|c| if c.is_control() { ' ' } else { c }));
        self.0.push('\n');
    }

    /// Adds a heading after an empty line, and the lines below it.
    fn section(&mut self, heading: &str, lines: impl Iterator<Item = String>) {
        for (index, line) in lines.enumerate() {
            if index == 0 {
                self.add("");
                self.add(heading);
            }
            self.add(&format!("  {line}"));
        }
    }
}

impl Report {
    /// Returns the report for people.
    pub fn text(&self) -> String {
        let mut lines = Lines::default();
        let against = match self.against {
            Against::Kernel => "the kernel of this node",
            Against::Nothing => "a kernel without rules for Services",
            Against::Manifests => "the other manifests",
            Against::Snapshot => "what was programmed in the snapshot",
        };
        lines.add(&format!("{} in {} mode, compared with {against}", self.node, self.mode));
        for family in &self.families {
            lines.add("");
            family.write(self.against, &mut lines);
        }
        let settings = self.settings.iter();
        lines.section(
            "kernel settings",
            settings.map(|it| format!("~ {} = {} instead of {}", it.name, it.wanted, it.present)),
        );
        let removed = self.removed.iter();
        lines.section("removed after the first commit", removed.map(|object| format!("- {object}")));
        lines.section("notes", self.notes.iter().map(|note| note.text.clone()));
        lines.add("");
        lines.add(if self.changes { "changes" } else { "no change" });
        lines.0
    }
}

impl FamilyPlan {
    fn write(&self, against: Against, lines: &mut Lines) {
        let present = match (&self.present, against) {
            (Some(present), Against::Snapshot) => format!(": the kernel had rules of {present}"),
            (Some(present), _) => format!(": the kernel has rules of {present}"),
            (None, Against::Snapshot) => ": the kernel had no rules for Services".to_owned(),
            (None, Against::Kernel) => ": the kernel has no rules for Services".to_owned(),
            (None, _) => String::new(),
        };
        lines.add(&format!("{}{present}", self.family));
        for service in &self.services {
            service.write(lines);
        }
        for change in &self.node_ports {
            lines.add(&format!("  ~ {}", change.text));
        }
        let counts = &self.counts;
        lines.add(&format!(
            "  Service ports: {} added, {} changed, {} removed, {} unchanged; endpoints: {} added, {} removed",
            counts.added,
            counts.changed,
            counts.removed,
            counts.unchanged,
            counts.endpoints_added,
            counts.endpoints_removed
        ));
        let Some(rules) = &self.rules else { return };
        match (rules.count, rules.lines.is_empty()) {
            (0, _) => lines.add("  the rules stay as they are"),
            (1, true) => lines.add("  1 line of rules would be written; --rules shows it"),
            (count, true) => {
                lines.add(&format!("  {count} lines of rules would be written; --rules shows them"));
            }
            (_, false) => lines.add("  rules"),
        }
        for line in &rules.lines {
            lines.add(&format!("    {line}"));
        }
    }
}

impl ServiceChange {
    fn write(&self, lines: &mut Lines) {
        let name = self.service.as_deref().unwrap_or("no Service");
        let sign = match self.action {
            Action::Add => '+',
            Action::Remove => '-',
            Action::Change => '~',
        };
        let mut line = format!("  {sign} {name} ({})", self.protocol);
        if !self.frontends.is_empty() {
            line = format!("{line}: {}", self.frontends.join(", "));
        }
        if self.action != Action::Change {
            let endpoints = self.endpoints_added.max(self.endpoints_removed);
            line = format!("{line}; {endpoints} endpoint{}", if endpoints == 1 { "" } else { "s" });
        }
        lines.add(&line);
        for change in &self.changes {
            lines.add(&format!("      {}", change.text));
        }
    }
}
