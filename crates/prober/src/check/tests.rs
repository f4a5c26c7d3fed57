use proptest::prelude::*;

use super::*;

fn timing(rise: u32, fall: u32, slow_start: u64) -> Timing {
    Timing { rise, fall, slow_start: Duration::from_secs(slow_start), ..Timing::default() }
}

/// Applies results one second apart: `+` passes, `-` fails. Returns the state after each.
fn states(start: CheckState, results: &str, timing: &Timing) -> String {
    let mut check = Check::new(start);
    let one = |(second, result): (u64, char)| {
        check.result(result == '+', Duration::from_secs(second), timing);
        match check.state() {
            CheckState::New => 'n',
            CheckState::Unchecked => 'u',
            CheckState::Failing => 'f',
            CheckState::Warming { .. } => 'w',
            CheckState::Passing => 'p',
        }
    };
    (0..).zip(results.chars()).map(one).collect()
}

#[test]
fn the_first_result_decides() {
    let timing = timing(2, 3, 0);
    for start in [CheckState::New, CheckState::Unchecked] {
        assert_eq!(states(start, "+", &timing), "p");
        assert_eq!(states(start, "-", &timing), "f");
    }
}

#[test]
fn rise_and_fall_count_results_in_a_row() {
    let timing = timing(2, 3, 0);
    assert_eq!(states(CheckState::Passing, "--+---", &timing), "pppppf");
    assert_eq!(states(CheckState::Failing, "+-++", &timing), "fffp");
}

#[test]
fn slow_start_ends_with_a_pass_after_its_time_and_starts_again_after_a_fall() {
    let timing = timing(1, 1, 3);
    assert_eq!(states(CheckState::New, "+++++", &timing), "wwwpp");
    assert_eq!(states(CheckState::New, "++-+++++", &timing), "wwfwwwpp");
    assert_eq!(
        states(CheckState::Unchecked, "+", &timing),
        "p",
        "an endpoint that is served is not held back"
    );
    let mut check = Check::new(CheckState::Warming { until: Duration::MAX });
    assert!(check.admit() && !check.admit());
    assert_eq!(check.state(), CheckState::Passing);
}

proptest! {
    /// Between two changes of health there are at least `rise` or `fall` results in a row that agree.
    #[test]
    fn the_state_never_flaps(
        rise in 1_u32..6, fall in 1_u32..6, slow_start in 0_u64..4,
        results in proptest::collection::vec(any::<bool>(), 0..200),
    ) {
        let timing = timing(rise, fall, slow_start);
        let mut check = Check::new(CheckState::New);
        let (mut run, mut last) = (0_u32, None);
        for (second, passed) in (0..).zip(results) {
            run = if last == Some(passed) { run + 1 } else { 1 };
            last = Some(passed);
            let before = check.state();
            let changed = check.result(passed, Duration::from_secs(second), &timing);
            let after = check.state();
            prop_assert_eq!(changed, before != after);
            if before.is_decided() && before.is_healthy() != after.is_healthy() {
                let enough = if passed { rise } else { fall };
                prop_assert!(run >= enough);
                prop_assert_eq!(after.is_healthy(), passed);
            }
            // And enough of them always decide.
            if run >= rise.max(fall) {
                prop_assert_eq!(after.is_healthy(), passed);
            }
        }
    }
}
