//! Runs a component on one of several servers at a time, by leader election.

use std::future::Future;
use std::sync::Arc;

use knarr_api::gates::COORDINATED_LEADER_ELECTION;
use knarr_apiserver::SYSTEM_VERSION;
use knarr_client::Client;
use knarr_client::leader_election::LeaderElection;
use knarr_client::leadership::Leadership;
use knarr_client::lease_candidate::Candidate;
use knarr_controllers::ClientOf;
use tokio_util::sync::CancellationToken;

/// Returns the holder identity of a component's lease in upstream's form: the host name and a unique suffix.
pub fn identity(host: &str) -> String {
    let mut bytes = [0u8; 8];
    // If the system has no randomness, the process id distinguishes servers of one machine.
    if ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).is_err() {
        bytes = u64::from(std::process::id()).to_be_bytes();
    }
    format!("{host}_{:016x}", u64::from_be_bytes(bytes))
}

/// Stands for election as the component of this name until `stop`, if the API server elects (coordinated
/// leader election).
pub fn stand(
    client: Client,
    election: &LeaderElection,
    component: &str,
    stop: CancellationToken,
) -> impl Future<Output = ()> + use<> {
    let candidate = Candidate {
        namespace: election.namespace.clone(),
        identity: election.identity.clone(),
        lease: component.to_owned(),
        version: SYSTEM_VERSION.trim_start_matches('v').to_owned(),
    };
    candidate.run(client, stop)
}

/// Binds the clients to the leadership.
pub fn clients_under(leadership: &Leadership, client_of: &ClientOf) -> ClientOf {
    let (leadership, client_of) = (leadership.clone(), Arc::clone(client_of));
    Arc::new(move |name| client_of(name).under(&leadership))
}

/// Runs `component` while this process holds the lease `name` in `kube-system`, until `stop`
/// ([`LeaderElection::while_leading`]).
pub async fn while_leading<F, Fut>(
    client: Client,
    name: &str,
    identity: &str,
    stop: CancellationToken,
    component: F,
) where
    F: Fn(Leadership) -> Fut,
    Fut: Future<Output = ()>,
{
    let coordinated = COORDINATED_LEADER_ELECTION.is_on();
    let election = LeaderElection { coordinated, ..LeaderElection::new("kube-system", name, identity) };
    if coordinated {
        let (client, election, component) = (client.clone(), election.clone(), name.to_owned());
        let supervisor = client.supervisor().clone();
        supervisor.spawn("lease-candidate", stop.clone(), move |stop| {
            stand(client.clone(), &election, &component, stop)
        });
    }
    election.while_leading(client, stop, component).await;
}
