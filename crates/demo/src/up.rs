//! `portolan demo up`: a host without Kubernetes. One of the backends of its Service ends and starts again.
//!
//! `host` runs `portolan up` and the backends, `traffic` makes connections and asks for names, `steps` shows both.

mod host;
mod steps;
mod traffic;

use crate::screen::Screen;

/// Shows the host. Returns true if every step had the expected result.
pub(super) fn play() -> anyhow::Result<bool> {
    let mut screen = Screen::new();
    let mut host = steps::set_up(&mut screen)?;
    let outcome = steps::show(&mut screen, &mut host);
    if outcome.is_err() || screen.failures() > 0 {
        eprintln!("--- log of portolan up ---\n{}---", host.log());
    }
    outcome?;
    steps::take_down(&mut screen, host)?;
    screen.verdict()?;
    Ok(screen.failures() == 0)
}
