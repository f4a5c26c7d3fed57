use super::*;
use crate::tests::{bad, good, moment, sync};
use crate::{Totals, What};

fn busiest() -> ServiceRates {
    crate::tests::rates(&[
        ("shop/frontend", 120.0),
        ("default/web", 60.25),
        ("shop/cart", 2.04),
        ("kube-system/dns", 1.0),
        ("shop/search", 0.5),
        ("a/b", 0.033),
    ])
}

/// Returns the screen as text, with the looks of the lines in front.
fn shown(state: &AgentState, rates: &Rates, lost: Option<&str>, size: (usize, usize)) -> String {
    shown_with(state, rates, Some(&busiest()), lost, size)
}

fn shown_with(
    state: &AgentState,
    rates: &Rates,
    busiest: Option<&ServiceRates>,
    lost: Option<&str>,
    (width, height): (usize, usize),
) -> String {
    let lines = screen(state, rates, busiest, lost, (width, height));
    assert_eq!(lines.len(), height);
    let line = |Line { look, text }: &Line| {
        assert!(text.chars().count() <= width, "{text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
        let look = match look {
            Look::Plain => ' ',
            Look::Head => '#',
            Look::Good => '+',
            Look::Bad => '!',
        };
        format!("{look}|{text}").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns rates of two documents a minute apart.
fn rates() -> Rates {
    let (mut rates, mut state) = (Rates::default(), good());
    rates.add(10.0, &state);
    state.families[0].totals.changed += 90;
    state.families[0].totals.syncs += 6;
    rates.add(70.0, &state);
    rates
}

/// Returns a state with syncs of every length and a failure.
fn busy() -> AgentState {
    let mut state = good();
    let v4 = &mut state.families[0];
    v4.syncs = (0..58_u32)
        .map(|number| Sync {
            duration_seconds: 1e-4 * 10_f64.powf(f64::from(number % 11) / 2.2),
            kernel_seconds: 4e-5 * 10_f64.powf(f64::from(number % 11) / 2.2),
            ..sync(f64::from(number) * 3.0)
        })
        .collect();
    v4.failures = vec![Sync { error: Some("exit status 4\n".into()), ..sync(10.0) }];
    v4.events.insert(0, RecordedEvent::new(What::Failed("exit status 4\n"), moment(10.0), 3));
    state
}

#[test]
fn a_screen_of_80_columns_and_24_lines() {
    insta::assert_snapshot!(shown(&busy(), &rates(), None, (80, 24)));
    let lines = screen(&busy(), &rates(), Some(&busiest()), None, (80, 24));
    let text = lines.iter().map(|line| line.text.trim_end()).collect::<Vec<_>>().join("\n");
    assert!(include_str!("../../../../docs/status.md").contains(&text), "the example on the page:\n{text}");
}

#[test]
fn a_large_screen() {
    insta::assert_snapshot!(shown(&busy(), &rates(), None, (120, 40)));
}

#[test]
fn every_problem_on_a_screen_of_80_columns() {
    insta::assert_snapshot!(shown(&bad(), &Rates::default(), Some("no proxy\nanswers"), (80, 30)));
}

#[test]
fn every_size_is_filled_and_nothing_is_wider() {
    for width in [0, 1, 10, 40, 79, 500] {
        for height in [0, 1, 2, 10, 23, 100] {
            for state in [good(), bad(), busy(), AgentState::default()] {
                let _ = shown(&state, &rates(), Some("lost"), (width, height));
            }
        }
    }
}

#[test]
fn as_many_services_as_fit_are_named() {
    let line = |busiest: &ServiceRates, size| {
        let text = shown_with(&good(), &rates(), Some(busiest), None, size);
        let found = text
            .lines()
            .find(|line| line.contains("New connections: "))
            .unwrap()
            .trim_start_matches([' ', '|'])
            .to_owned();
        (found, text)
    };
    let all = busiest();
    for (width, want) in [
        (
            200,
            "183.8/s; shop/frontend 120.0, default/web 60.2, shop/cart 2.0, kube-system/dns 1.0, shop/search 0.5, a/b 0.0",
        ),
        (60, "183.8/s; shop/frontend 120.0"),
        (20, "183"),
    ] {
        assert_eq!(line(&all, (width, 24)).0, format!("New connections: {want}"));
    }
    let (short, text) = line(&all, (80, 40));
    assert_eq!(short, "New connections: 183.8/s");
    assert!(text.contains("#|Busiest of 7 Services with new connections, per second"), "{text}");
    let (_, table) = text.split_once("per second\n").unwrap();
    let rows: Vec<&str> = table.lines().take_while(|line| *line != " |").collect();
    assert!(rows.len() == 6 && rows[5].ends_with("a/b              0.0"), "{text}");
    let first = ServiceRates::default();
    assert_eq!(line(&first, (80, 40)).0, "New connections: no rates yet");
    let off =
        ServiceRates { not_counted: Some("the mode\ncounts nothing".into()), ..ServiceRates::default() };
    assert_eq!(line(&off, (80, 40)).0, "New connections: the mode; counts nothing");
    let idle = ServiceRates { per_second: Some(0.0), ..ServiceRates::default() };
    let (short, text) = line(&idle, (80, 40));
    assert_eq!(short, "New connections: 0.0/s");
    assert!(!text.contains("Busiest"), "{text}");
    let none = shown_with(&good(), &rates(), None, None, (80, 40));
    assert!(!none.contains("New connections"), "an agent without rates: {none}");
}

#[test]
fn rates_are_of_the_last_minute_and_of_one_process() {
    let (mut rates, mut state) = (Rates::default(), good());
    assert_eq!(rates.per_minute(), None);
    let mut at = |rates: &mut Rates, seconds: f64, changed: u64| {
        state.families[0].totals = Totals { syncs: changed / 10, failures: 0, changed };
        state.families[1].totals = Totals::default();
        rates.add(seconds, &state);
    };
    at(&mut rates, 0.0, 0);
    assert_eq!(rates.per_minute(), None, "one document");
    for second in 1..=300_u32 {
        at(&mut rates, f64::from(second), 1_000);
    }
    assert_eq!(rates.per_minute(), Some((0.0, 0.0)), "the change was more than a minute ago");
    at(&mut rates, 301.0, 1_030);
    assert_eq!(rates.per_minute(), Some((3.0, 30.0)));
    assert!(rates.seen.len() < 70, "it is bounded");
    let mut other = good();
    other.agent.started.at = "later".into();
    rates.add(302.0, &other);
    assert_eq!(rates.per_minute(), None, "another process counts from 0");
}
