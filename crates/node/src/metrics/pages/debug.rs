//! `/debug/*`, available with profiling only.

use bytes::Bytes;
use hyper::header::{HeaderValue, LOCATION};
use hyper::{Method, Request, StatusCode};
use portolan_web::{self as web, Answer, PLAIN};

const HTML: &str = "text/html; charset=utf-8";
const INDEX: &str = "<html>\n<head>\n<title>/debug/flags/</title>\n</head>\n<body>\nFlags that can be changed by PUT:\n\
                     <ul>\n<li>/debug/flags/v: verbosity of the log</li>\n</ul>\n</body>\n</html>\n";
/// The response to profile requests: Go's profiles are of Go's runtime, which this program does not have.
const NO_PPROF: &str = "profiles in Go's format are not available\n\n\
    CPU:       perf record -g -p $(pidof portolan), then perf report\n\
    syscalls:  strace -c -p $(pidof portolan)\n\
    memory:    /proc/$(pidof portolan)/smaps_rollup, process_resident_memory_bytes in /metrics\n\
    latencies: kubeproxy_* and portolan_* histograms in /metrics\n\
    log:       PUT a verbosity to /debug/flags/v\n";

/// Returns the response for a path below `/debug/`.
pub(super) fn answer(
    request: &Request<Bytes>,
    set_verbosity: Option<&(dyn Fn(u32) + Send + Sync)>,
) -> Answer {
    match request.uri().path() {
        "/debug/pprof" => {
            let mut answer = web::answer(StatusCode::FOUND, PLAIN, Bytes::new());
            answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/debug/pprof/"));
            answer
        }
        path if path.starts_with("/debug/pprof/") => {
            web::answer(StatusCode::NOT_IMPLEMENTED, PLAIN, NO_PPROF)
        }
        "/debug/flags" | "/debug/flags/" => web::answer(StatusCode::OK, HTML, INDEX),
        "/debug/flags/v" if request.method() == Method::PUT => verbosity(request.body(), set_verbosity),
        "/debug/flags/v" => web::answer(StatusCode::NOT_ACCEPTABLE, PLAIN, "unsupported http method\n"),
        _ => web::not_found(),
    }
}

fn verbosity(body: &[u8], set: Option<&(dyn Fn(u32) + Send + Sync)>) -> Answer {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    let failed = |why: &str| {
        let text = format!("failed to set klog.logging.verbosity {text}: {why}\n");
        web::answer(StatusCode::BAD_REQUEST, PLAIN, text)
    };
    let Ok(level) = text.parse::<i32>() else { return failed("not a number from 0 to 2147483647") };
    let Some(set) = set else { return failed("the verbosity cannot be changed while running") };
    // klog accepts negative levels, which have the same effect as 0.
    set(u32::try_from(level).unwrap_or(0));
    web::answer(StatusCode::OK, PLAIN, format!("successfully set klog.logging.verbosity to {text}\n"))
}
