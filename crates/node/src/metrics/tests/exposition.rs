//! A strict parser of Prometheus' text format 0.0.4.

use std::collections::{BTreeMap, BTreeSet};

/// One metric with its samples.
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

/// One line of a metric.
pub(crate) struct Sample {
    /// What follows the metric's name: `_bucket`, `_sum`, `_count`, or empty.
    pub(crate) suffix: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// Parses a page. Returns the first error that it finds.
pub(crate) fn read(page: &str) -> Result<Vec<Shown>, String> {
    if !page.is_empty() && !page.ends_with('\n') {
        return Err("the last line does not end".into());
    }
    let mut all: Vec<Shown> = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or(line)?;
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).ok_or(line)?;
            let kind = kind.strip_prefix(name).and_then(|kind| kind.strip_prefix(' ')).ok_or(kind)?;
            if all.iter().any(|shown| shown.name == name) || !is_name(name, true) {
                return Err(format!("{name}: twice, or not a name"));
            }
            let (name, kind, help) = (name.into(), kind.into(), help.into());
            all.push(Shown { name, kind, help, samples: Vec::new() });
        } else {
            let shown = all.last_mut().ok_or("a sample without a metric")?;
            let sample = sample(line, &shown.name).ok_or_else(|| format!("not a sample: {line}"))?;
            shown.samples.push(sample);
        }
    }
    all.iter().try_for_each(Shown::check)?;
    Ok(all)
}

fn sample(line: &str, name: &str) -> Option<Sample> {
    let rest = line.strip_prefix(name)?;
    let (suffix, rest) = rest.split_at(rest.find(['{', ' '])?);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = value.strip_prefix(' ')?.parse().ok()?;
    Some(Sample { suffix: suffix.into(), labels, value })
}

/// Parses labels. Returns them, and the text after their closing brace.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = quoted.char_indices();
        let end = loop {
            match letters.next()? {
                (end, '"') => break end,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    escaped @ ('\\' | '"') => escaped,
                    _ => return None,
                }),
                (_, letter) => value.push(letter),
            }
        };
        if !is_name(name, false) || labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        rest = &quoted[end + 1..];
        match rest.strip_prefix('}') {
            Some(rest) => return Some((labels, rest)),
            None => rest = rest.strip_prefix(',')?,
        }
    }
}

fn is_name(name: &str, colon: bool) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_' || (colon && c == ':');
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

impl Shown {
    /// Returns the label names of every sample, without `le`.
    pub(crate) fn label_names(&self) -> BTreeSet<&str> {
        let names = self.samples.iter().flat_map(|sample| sample.labels.keys());
        names.map(String::as_str).filter(|name| *name != "le").collect()
    }

    /// Returns the upper bounds of the buckets, in the order of the page.
    pub(crate) fn bounds(&self) -> Vec<&str> {
        let mut seen = Vec::new();
        for bound in self.samples.iter().filter_map(|sample| sample.labels.get("le")) {
            if !seen.contains(&bound.as_str()) {
                seen.push(bound);
            }
        }
        seen
    }

    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        if self.samples.is_empty() {
            return Err(format!("{name}: no samples"));
        }
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            if !seen.insert((&sample.suffix, &sample.labels)) {
                return Err(format!("{name}: {:?} twice", sample.labels));
            }
            if self.kind != "histogram" && !sample.suffix.is_empty() {
                return Err(format!("{name}{}: not the same metric", sample.suffix));
            }
            if self.kind == "counter" && sample.value < 0.0 {
                return Err(format!("{name}: a counter below 0"));
            }
        }
        match self.kind.as_str() {
            "counter" | "gauge" => Ok(()),
            "histogram" => self.check_histogram(),
            other => Err(format!("{name}: no such type: {other}")),
        }
    }

    fn check_histogram(&self) -> Result<(), String> {
        let mut members: BTreeMap<BTreeMap<&str, &str>, Vec<&Sample>> = BTreeMap::new();
        for sample in &self.samples {
            let labels = sample.labels.iter().filter(|(name, _)| *name != "le");
            let labels = labels.map(|(name, value)| (name.as_str(), value.as_str())).collect();
            members.entry(labels).or_default().push(sample);
        }
        for (labels, samples) in members {
            let wrong = |what: &str| Err(format!("{}{labels:?}: {what}", self.name));
            let (mut bound, mut count) = (f64::NEG_INFINITY, 0.0);
            let of =
                |suffix: &str| samples.iter().filter(|sample| sample.suffix == suffix).collect::<Vec<_>>();
            for bucket in of("_bucket") {
                let Some(Ok(next)) = bucket.labels.get("le").map(|le| le.parse::<f64>()) else {
                    return wrong("a bucket without a bound");
                };
                if next <= bound || bucket.value < count {
                    return wrong("buckets that do not grow");
                }
                (bound, count) = (next, bucket.value);
            }
            let [total] = of("_count")[..] else { return wrong("not one count") };
            if bound != f64::INFINITY || total.value.to_bits() != count.to_bits() || of("_sum").len() != 1 {
                return wrong("no last bucket, or a sum or count that does not belong to it");
            }
        }
        Ok(())
    }
}

#[test]
fn pages_with_mistakes_are_refused() {
    let good = "# HELP a b\n# TYPE a gauge\na{x=\"1\\\"\"} 2\n";
    assert_eq!(read(good).expect("good").len(), 1);
    let histogram = |samples: &str| format!("# HELP h b\n# TYPE h histogram\n{samples}");
    let complete = "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n";
    assert!(read(&histogram(complete)).is_ok());
    for bad in [
        "# HELP a b\n# TYPE a gauge\na 2",
        "# HELP a b\n# TYPE b gauge\na 2\n",
        "# HELP a b\n# TYPE a gauge\n",
        "# HELP a b\n# TYPE a gauge\na 2\na 2\n",
        "# HELP a b\n# TYPE a gauge\nb 2\n",
        "# HELP a b\n# TYPE a gauge\na{x=\"1} 2\n",
        "# HELP a b\n# TYPE a gauge\na{1x=\"1\"} 2\n",
        "# HELP a b\n# TYPE a thing\na 2\n",
        "# HELP a b\n# TYPE a counter\na -2\n",
        "a 2\n",
        &histogram("h_bucket{le=\"1\"} 1\nh_sum 3\nh_count 1\n"),
        &histogram("h_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"),
        &histogram("h_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 3\n"),
        &histogram("h_bucket{le=\"+Inf\"} 2\nh_count 2\n"),
    ] {
        assert!(read(bad).is_err(), "{bad}");
    }
}
