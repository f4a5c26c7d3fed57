//! Watches that end or are silent: what is requested next, and when.

use super::*;

#[tokio::test(start_paused = true)]
async fn watches_that_end_at_once_are_backed_off() {
    let log = services([ok(listed()), ok(""), ok(""), ok("")]).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 4]);
    log.assert_at_once(1);
    for (request, low) in [(2, 500), (3, 1000), (4, 2000)] {
        log.assert_backed_off(request, low);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_resumes() {
    let body = [Step::Send(listed().into()), Step::Wait(Duration::from_secs(9)), Step::Break];
    let log = services([steps(body), Answer::Refuse, Answer::Refuse]).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 3]);
    (2..=3).for_each(|request| log.assert_backed_off(request, 500));
    assert_eq!(log.restarts, 3);
}

#[tokio::test(start_paused = true)]
async fn watches_cut_every_five_seconds_are_opened_again_at_once() {
    let heard = || Step::Send(bookmark("10").into());
    let cut = || steps([heard(), Step::Wait(Duration::from_secs(5)), Step::Break]);
    let first = steps([Step::Send(listed().into()), Step::Wait(Duration::from_secs(5)), Step::Break]);
    let log = services([first].into_iter().chain((0..50).map(|_| cut()))).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 51]);
    for pair in log.times.windows(2) {
        let away = pair[1].checked_sub(pair[0] + Duration::from_secs(5)).unwrap();
        assert!(away <= Duration::from_millis(252), "{away:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_absent_server_is_asked_every_second_however_long_it_is_away() {
    let log = services((0..60).map(|_| Answer::Refuse)).await;
    assert_eq!(log.queries(), [STREAM; 61]);
    (1..=60).for_each(|request| log.assert_backed_off(request, 500));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_worked_for_some_seconds_ends_the_back_off() {
    let worked = || steps([Step::Wait(Duration::from_secs(3)), Step::Break]);
    let log =
        services([ok(listed()), status(500), status(500), status(500), worked(), status(500), status(500)])
            .await;
    log.assert_backed_off(4, 3200);
    log.assert_backed_off(6, 800);
    log.assert_backed_off(7, 1600);
}

#[tokio::test(start_paused = true)]
async fn server_errors_in_a_watch_keep_its_place() {
    let log = services([ok(listed()), status(500), status(501), status(429)]).await;
    assert_eq!(log.queries()[1..], ["resourceVersion=10"; 4]);
    for (request, low) in [(2, 800), (3, 1600), (4, 3200)] {
        log.assert_backed_off(request, low);
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_server_says_when() {
    let busy = |code| Answer::Say(code, Some("20"), Vec::new());
    let log = services([busy(429), busy(503), ok(listed())]).await;
    for pair in log.times[..3].windows(2) {
        let wait = pair[1].checked_sub(pair[0]).unwrap();
        assert!((20..=30).contains(&wait.as_secs()), "{wait:?}");
    }
    assert_eq!(log.queries()[..3], [STREAM; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_given_up_after_its_length_and_half_a_minute() {
    let patient = Timing { bookmark_silence: Duration::from_secs(3600), ..Timing::default() };
    let answers = [steps([Step::Send(listed().into()), Step::Hang]), ok("")];
    let log = play_with(patient, Kind::Service, answers).await;
    let seconds = log.requests[0].split("timeoutSeconds=").nth(1).unwrap();
    let seconds: u64 = seconds.split('&').next().unwrap().parse().unwrap();
    assert!((300..600).contains(&seconds), "{seconds}");
    let silence = log.times[1].as_millis() - u128::from(seconds) * 1000;
    assert!((30_000..=30_252).contains(&silence), "{silence}");
    assert_eq!(log.queries()[1], "resourceVersion=10");
}

/// A healthy server sends one bookmark a minute, up to 1.25 s late.
#[tokio::test(start_paused = true)]
async fn an_idle_watch_with_bookmarks_is_left_alone() {
    let bookmark = |_| [Step::Wait(Duration::from_millis(61_250)), Step::Send(bookmark("10").into())];
    let body = [Step::Send(listed().into())].into_iter().chain((0..9).flat_map(bookmark));
    let log = services([steps(body.collect::<Vec<_>>())]).await;
    assert_eq!((log.lists, log.restarts, log.heard_at.len()), (1, 0, 10));
    assert_eq!(log.queries()[1], "resourceVersion=10");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lost_its_history_is_listed_when_bookmarks_stay_away() {
    let silent = steps([Step::Send(listed().into()), Step::Hang]);
    let log = services([silent, ok(added("b", "2") + &end_mark("3"))]).await;
    assert_eq!(log.queries(), [STREAM, STREAM, "resourceVersion=3"]);
    let silence = log.times[1].as_millis();
    assert!((90_000..=90_252).contains(&silence), "{silence}");
    assert!(
        log.events[3].starts_with("relist: neither an event nor a bookmark came for 90 s"),
        "{:?}",
        log.events
    );
    assert_eq!(log.events[4..7], ["start", "+ns/b@2", "end"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_goes_back_is_listed_at_once() {
    for back in [bookmark("9"), added("b", "9")] {
        let log = services([ok(listed() + &back)]).await;
        assert_eq!(log.queries(), [STREAM, STREAM]);
        log.assert_at_once(1);
        assert!(log.events[3].starts_with("relist: resource version 9 came after 10"), "{:?}", log.events);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers() {
    let log = services([Answer::Never, Answer::Never]).await;
    assert_eq!(log.queries(), [STREAM, "limit=500", "limit=500"]);
    assert!(log.times[1] >= Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_has_older_versions() {
    let too_large = json!({"code": 504, "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}});
    let refusal = Answer::Say(504, None, vec![Step::Send(too_large.to_string().into())]);
    let log = services([ok(listed()), refusal]).await;
    assert_eq!(log.queries(), [STREAM, "resourceVersion=10", STREAM]);
}

/// Returns an answer in which a middlebox cuts the watch before a bookmark is due.
fn cut_when_idle(seconds: u64) -> Answer {
    steps([Step::Wait(Duration::from_secs(seconds)), Step::Break])
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lost_its_history_is_listed_though_idle_watches_are_cut() {
    let first = steps([Step::Send(listed().into()), Step::Wait(Duration::from_secs(50)), Step::Break]);
    let log = services([first, cut_when_idle(50), ok(added("b", "2") + &end_mark("3"))]).await;
    assert_eq!(log.queries(), [STREAM, "resourceVersion=10", STREAM, "resourceVersion=3"]);
    let silence = log.times[2].as_millis();
    assert!((90_000..=90_504).contains(&silence), "{silence}");
    assert!(log.events[4].starts_with("relist: neither an event nor a bookmark"), "{:?}", log.events);
}

/// The alert on `portolan_watch_age_seconds` fires from 900 s on.
#[tokio::test(start_paused = true)]
async fn a_healthy_server_behind_idle_cuts_is_heard_of_before_the_alert() {
    let answers = (0..400).map(|_| {
        let list = [Step::Send(listed().into()), Step::Wait(Duration::from_secs(50)), Step::Break];
        Answer::ByQuery { list: steps(list).into(), watch: cut_when_idle(50).into() }
    });
    let log = services(answers).await;
    assert!(*log.times.last().unwrap() > Duration::from_secs(5 * 3600), "{:?}", log.times.last());
    let longest = log.heard_at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!((720..740).contains(&longest.as_secs()), "{longest:?}");
    assert!(log.lists <= 32, "{} lists in five hours and a half", log.lists);
}

#[tokio::test(start_paused = true)]
async fn an_outage_does_not_count_as_silence() {
    let away = (0..600).map(|_| Answer::Refuse);
    let first = steps([Step::Send(listed().into()), Step::Wait(Duration::from_secs(50)), Step::Break]);
    let back = steps([Step::Wait(Duration::from_secs(30)), Step::Send(bookmark("10").into()), Step::Hang]);
    let log = services([first].into_iter().chain(away).chain([back])).await;
    assert!(log.times[601] > Duration::from_secs(300));
    assert_eq!(log.queries()[1..602], vec!["resourceVersion=10"; 601]);
    assert_eq!(log.lists, 1, "no other before the bookmark is 90 s old");
    let silence = log.times[602].checked_sub(log.times[601]).unwrap().as_millis();
    assert!((120_000..=120_252).contains(&silence), "{silence}");
}
