//! The web page: its policy, and the page in a headless Chromium. Without Chromium only the former.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test stops at the first surprise"
)]

#[path = "web_page/browser.rs"]
mod browser;
#[path = "web_page/server.rs"]
mod server;

use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use portolan_status::page::{HTML, POLICY};
use ring::digest::{SHA256, digest};
use serde_json::Value;

use browser::Browser;
use server::{HOSTILE, SERVICES, Server};

const DESK: (u32, u32) = (1000, 840);
const PHONE: (u32, u32) = (360, 740);

/// Returns what is between two texts, each of which is there once.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    assert_eq!((text.matches(before).count(), text.matches(after).count()), (1, 1), "{before}");
    let (_, rest) = text.split_once(before).unwrap();
    rest.split_once(after).unwrap().0
}

#[test]
fn the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() {
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    let [script, style] = [("<script>", "</script>"), ("<style>", "</style>")]
        .map(|(before, after)| hash(between(HTML, before, after)));
    let want = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    assert_eq!(POLICY, want, "write these hashes into src/page.rs");
}

#[test]
fn the_page_is_one_file_and_makes_no_html_of_texts() {
    for part in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        " style=",
        " onclick=",
    ] {
        assert!(!HTML.contains(part), "{part}");
    }
    for part in ["https://", "http://", "//cdn", "@import", "url("] {
        let found = HTML.matches(part).count();
        // The name of SVG's namespace.
        assert_eq!(found, usize::from(part == "http://"), "{part}");
    }
}

/// Opens the page. `None` without a browser.
fn opened(size: (u32, u32)) -> Option<(Server, Browser)> {
    let (server, mut browser) = (Server::start(), Browser::start()?);
    browser.open(&server.address, size);
    browser.until("document.querySelectorAll('#list a').length === 50 && document.querySelectorAll('.bar').length > 100");
    Some((server, browser))
}

/// Returns the text of what a selector finds.
fn text(browser: &mut Browser, selector: &str) -> String {
    let text = browser.value(&format!("document.querySelector({selector:?}).innerText"));
    text.as_str().unwrap_or_default().to_owned()
}

#[test]
fn the_state_is_shown() {
    let Some((_server, mut browser)) = opened(DESK) else { return };
    assert_eq!(text(&mut browser, "#verdict"), "✓ In sync");
    assert_eq!(text(&mut browser, "h1"), "Portolan node1");
    let all = text(&mut browser, "main");
    for part in [
        "50,000",
        "another program changes the rules",
        "Sync latency, IPv4",
        "60 syncs, 1 failed; median",
        "a commit failed: iptables-restore: exit status 4 (3 times)",
        "default/web:http, default/dns, shop/cart and 2 more",
        "9,4",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
    // A rate needs two answers. Each has one more sync of each family, with five changes.
    browser.until("document.querySelectorAll('#tiles svg').length === 4");
    let rates = browser.value("[...document.querySelectorAll('#tiles dd')].map(one => one.innerText).filter(text => text.endsWith('/min'))");
    let rate = |at: usize| {
        rates[at].as_str().unwrap().trim_end_matches("/min").replace(',', "").parse::<f64>().unwrap()
    };
    assert!(rate(0) > 0.0 && (rate(0) / rate(1) - 5.0).abs() < 0.3, "{rates}");
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn the_keyboard_finds_and_opens_a_service() {
    let Some((_server, mut browser)) = opened(DESK) else { return };
    browser.key("/");
    browser.until("document.activeElement.id === 'search'");
    browser.write("cart");
    browser.until("document.querySelectorAll('#list a').length === 1");
    assert_eq!(text(&mut browser, "#found"), "1 Service found");
    browser.key("ArrowDown");
    browser.until("document.activeElement.dataset.key === 'shop/cart'");
    browser.key("ArrowUp");
    browser.until("document.activeElement.id === 'search'");
    browser.key("ArrowDown");
    browser.key("Enter");
    browser.until(
        "document.querySelectorAll('#detail svg').length === 2 && document.activeElement.id === 'detail'",
    );
    let label = browser.value("document.querySelector('#detail svg').getAttribute('aria-label')");
    assert_eq!(
        label,
        "Path: 10.96.0.1:80, 192.0.2.7:80, :30080; policies Cluster and Local; 2 endpoints in use, 1 left out"
    );
    let detail = text(&mut browser, "#detail");
    for part in
        ["Health check on node port 31000", "203.0.113.0/24", "Session affinity by client address, 3h"]
    {
        assert!(detail.contains(part), "{part}: {detail}");
    }
    let drawn = browser.value("document.querySelector('#detail').textContent");
    for part in
        ["✗ 10.244.2.12:8080", "it is not ready", "policy Local", "✗ dropped", "no endpoint on this node"]
    {
        assert!(drawn.as_str().unwrap().contains(part), "{part}: {drawn}");
    }
    browser.until("document.querySelectorAll('#tiles svg').length === 4");
    browser.picture("status-page-light.png");
    browser.key("Escape");
    browser.until("!location.hash && document.activeElement.dataset.key === 'shop/cart'");
    browser.key("/");
    browser.key("Escape");
    browser.until("document.querySelector('#search').value === '' && document.querySelectorAll('#list a').length === 50");
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn many_services_are_searched_by_the_server() {
    let Some((server, mut browser)) = opened(DESK) else { return };
    assert_eq!(text(&mut browser, "#found"), "50 Services, and more follow");
    browser.value("document.querySelector('#more').click()");
    browser.until("document.querySelectorAll('#list a').length === 250");
    let before = server.asked.load(Ordering::SeqCst);
    browser.key("/");
    browser.write(&format!("web-{}", SERVICES - 1));
    browser.until("document.querySelectorAll('#list a').length === 1");
    let asked = server.asked.load(Ordering::SeqCst) - before;
    assert!((3..=9).contains(&asked), "{asked} requests");
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn the_page_shows_1_000_of_50_000_services_and_asks_for_no_more() {
    let Some((server, mut browser)) = opened(DESK) else { return };
    let links = "document.querySelectorAll('#list a').length";
    let mut shown = 50;
    while shown <= 1000 && browser.value("document.querySelector('#more').hidden") == false {
        browser.value("document.querySelector('#more').click()");
        browser.until(&format!("{links} > {shown}"));
        shown = browser.value(links).as_u64().unwrap();
    }
    assert_eq!(shown, 1000);
    assert_eq!(text(&mut browser, "#found"), "1,000 Services, and more follow");
    let limit = server.limit.load(Ordering::SeqCst);
    assert!((50..=1000).contains(&limit), "a request for {limit} Services");
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn the_busiest_services_lead_to_their_paths() {
    let Some((_server, mut browser)) = opened(DESK) else { return };
    browser.until("document.querySelectorAll('#busiest td a').length === 3");
    let shown = text(&mut browser, "#busiest");
    for part in [
        "194 new connections per second to 3 Services",
        "shop/cart\t184",
        "shop/web-00007\t9.3",
        "shop/a-hostile\t0.2",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    // Their trend needs two answers.
    browser.until("[...document.querySelectorAll('#tiles svg')].some(one => one.getAttribute('aria-label').endsWith(': at most 194 per second'))");
    let tiles = text(&mut browser, "#tiles");
    assert!(tiles.contains("New connections\n194/s\nto 3 Services"), "{tiles}");
    browser.value("document.querySelector('#busiest td a').focus(); 1");
    browser.key("Enter");
    browser.until("document.querySelectorAll('#detail svg').length === 2");
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn names_are_text_whatever_they_contain() {
    let Some((server, mut browser)) = opened(DESK) else { return };
    let address = format!("{}#shop%2Fa-hostile", server.address);
    browser.call("Page.navigate", serde_json::json!({ "url": address }));
    browser.until("document.querySelectorAll('#detail svg').length === 1");
    let shown = browser.value("document.body.textContent");
    assert!(shown.as_str().unwrap().matches(HOSTILE).count() >= 4, "{shown}");
    for selector in ["img", "b", "#detail script", "main script"] {
        assert_eq!(
            browser.value(&format!("document.querySelectorAll({selector:?}).length")),
            0,
            "{selector}"
        );
    }
    assert_eq!(browser.value("typeof hacked"), "undefined");
    assert_eq!(browser.errors, [""; 0]);
    // A hash that is no name of a Service, and one that cannot be decoded.
    for hash in ["#%3Cb%3Ex%2Fy", "#%E0%A4%A", "#x"] {
        browser.value(&format!("location.hash = {hash:?}; 1"));
    }
    browser.until("location.hash === '#x'");
    assert_eq!(browser.value("document.querySelectorAll('b').length"), 0);
    // What would be run in spite of this is refused by the policy.
    browser.value("(() => { const s = document.createElement('script'); s.textContent = 'injected = 1'; document.body.append(s); })()");
    assert_eq!(browser.value("typeof injected"), "undefined");
    assert!(
        browser.errors.iter().any(|error| error.contains("Content Security Policy")),
        "{:?}",
        browser.errors
    );
}

/// An expression: the lowest contrast of a text with its background, and that text (WCAG 2, 1.4.3).
const CONTRAST: &str = "(() => {
    const numbers = text => text.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0);
    const behind = node => { for (; node; node = node.parentElement) { const color = numbers(getComputedStyle(node).backgroundColor);
        if (color.length < 4 || color[3] > 0) return color; } return [255, 255, 255]; };
    let worst = [99, ''];
    for (const node of document.querySelectorAll('body *')) {
        const own = [...node.childNodes].filter(child => child.nodeType === 3).map(child => child.data.trim()).join('');
        if (!own || ['SCRIPT', 'STYLE', 'TITLE', 'title'].includes(node.tagName) || !node.getClientRects().length) continue;
        const style = getComputedStyle(node), color = node instanceof SVGElement ? style.fill : style.color;
        const [one, other] = [light(numbers(color)), light(behind(node))].sort((a, b) => b - a);
        const ratio = (one + .05) / (other + .05);
        if (ratio < worst[0]) worst = [ratio, own];
    }
    return worst;
})()";

#[test]
fn it_is_readable_on_a_phone_and_in_the_dark() {
    let Some((_server, mut browser)) = opened(PHONE) else { return };
    browser.value("location.hash = 'shop%2Fcart'; 1");
    browser.until("document.querySelectorAll('#detail svg').length === 2");
    let mut backgrounds = Vec::new();
    for (scheme, size) in [("light", PHONE), ("dark", PHONE), ("light", DESK), ("dark", DESK)] {
        browser.scheme(scheme);
        browser.resize(size);
        browser.until(&format!("document.documentElement.clientWidth === {}", size.0));
        browser.until("document.querySelector('#detail svg').viewBox.baseVal.width <= Math.max(280, document.querySelector('#detail').clientWidth)");
        // Tables scroll by themselves.
        let wide = browser.value("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= size.0.into(), "{wide} pixels at {size:?}");
        let worst = browser.value(CONTRAST);
        assert!(worst[0].as_f64().unwrap() >= 4.5, "{scheme}: {worst}");
        backgrounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
        match (scheme, size) {
            ("dark", DESK) => {
                browser.value("document.querySelector('#latency').scrollIntoView(); 1");
                browser.picture("status-page-dark.png");
            }
            ("light", PHONE) => {
                browser.value("document.querySelector('#detail').scrollIntoView(); 1");
                browser.picture("status-page-phone.png");
            }
            _ => {}
        }
    }
    assert!(backgrounds[0] == backgrounds[2] && backgrounds[0] != backgrounds[1], "{backgrounds:?}");
    // Pictures and fields have names for those who do not see them.
    let nameless = "document.querySelectorAll('svg:not([role=img][aria-label]), input:not([aria-label]), section:not([aria-label], [aria-labelledby])').length";
    assert_eq!(browser.value(nameless), 0);
    assert_eq!(browser.errors, [""; 0]);
}

#[test]
fn an_agent_that_does_not_answer_is_reported() {
    let Some((server, mut browser)) = opened(DESK) else { return };
    assert_eq!(browser.value("document.querySelector('#lost').hidden"), Value::Bool(true));
    server.fails.store(true, Ordering::SeqCst);
    browser
        .until("document.querySelector('#lost').innerText.includes('The agent does not answer: ask again')");
    server.fails.store(false, Ordering::SeqCst);
    browser.until("document.querySelector('#lost').hidden");
}
