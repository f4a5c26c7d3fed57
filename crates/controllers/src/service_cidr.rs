//! Examines the ServiceCIDRs when something changes that their state depends on.

use std::time::Duration;

use portolan_api::{Api, service_cidr::sync};
use portolan_schema::Resource;

use super::RECHECK_INTERVAL;

/// Pause after a change of an IPAddress before all ServiceCIDRs are examined: many addresses may be released at once.
const PAUSE: Duration = Duration::from_millis(100);

/// Examines all ServiceCIDRs every [`RECHECK_INTERVAL`], when one changes, and when an address changes while one is being
/// deleted.
pub(super) async fn keep(api: &Api) {
    let mut cidrs = api.store().subscribe(Resource::ServiceCidr);
    let mut addresses = api.store().subscribe(Resource::IpAddress);
    loop {
        cidrs.borrow_and_update();
        addresses.borrow_and_update();
        let is_any_going = sync(api).await;
        tokio::select! {
            _ = cidrs.changed() => {}
            _ = addresses.changed(), if is_any_going => tokio::time::sleep(PAUSE).await,
            () = tokio::time::sleep(RECHECK_INTERVAL) => {}
        }
    }
}
