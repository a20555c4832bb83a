//! Streams, applications and statistics: what `kera stream`, `kera status` and the like ask for.

use kera_format::{GroupId, LaneId, StreamId, StreamOptions, StreamletId};
use kera_protocol::{
    AlterStream, ApplicationDescription, ApplicationSummary, AvailableGroups, AvailableSegments, ClusterDescription,
    CommittedOffsets, CreateStream, DeleteApplication, DeleteStream, DescribeApplication, DescribeCluster,
    FetchOffsets, GetStream, GroupInfo, LaneStats, ListApplications, ListStreams, Lookup, LookupResult, NodeStatus,
    NodeStatusResponse, ResetOffsets, SegmentInfo, Start, StreamChanges, StreamInfo, StreamRef, StreamStats,
};

use crate::{Client, ClientError};

/// Administers a server. Made by [`Client::admin`]; costs nothing.
///
/// Errors of all methods: [`ClientError::Rpc`] with the server's status and message, or with what kept the server from
/// being asked.
#[derive(Clone, Debug)]
pub struct Admin {
    pub(crate) client: Client,
}

impl Admin {
    /// Makes a stream; an error if one of that name exists.
    pub async fn create_stream(&self, name: &str, options: StreamOptions) -> Result<StreamInfo, ClientError> {
        self.client.call(&CreateStream { name: name.into(), options, if_not_exists: false }).await
    }

    /// Makes a stream, or finds the one of that name, whatever its options are.
    pub async fn ensure_stream(&self, name: &str, options: StreamOptions) -> Result<StreamInfo, ClientError> {
        self.client.call(&CreateStream { name: name.into(), options, if_not_exists: true }).await
    }

    /// Finds a stream by name or id.
    pub async fn stream(&self, stream: impl Into<StreamRef>) -> Result<StreamInfo, ClientError> {
        self.client.call(&GetStream { stream: stream.into() }).await
    }

    /// All streams whose names start with `prefix`, in the order of their names; `system`: also those of the system.
    pub async fn streams(&self, prefix: &str, system: bool) -> Result<Vec<StreamInfo>, ClientError> {
        let mut all = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |info: &StreamInfo| info.name.clone());
            let page = self.client.call(&ListStreams { prefix: prefix.into(), after, limit: 0, system }).await?;
            let more = page.more && !page.streams.is_empty();
            all.extend(page.streams);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Changes options of a stream, all or none.
    pub async fn alter_stream(
        &self,
        stream: impl Into<StreamRef>,
        changes: StreamChanges,
    ) -> Result<StreamInfo, ClientError> {
        self.client.call(&AlterStream { stream: stream.into(), changes }).await
    }

    /// Deletes a stream and all of its data.
    pub async fn delete_stream(&self, stream: impl Into<StreamRef>) -> Result<(), ClientError> {
        self.client.call(&DeleteStream { stream: stream.into() }).await.map(drop)
    }

    /// How much is in each lane of a stream that was ever written to.
    pub async fn stream_stats(&self, stream: StreamId) -> Result<Vec<LaneStats>, ClientError> {
        let mut all: Vec<LaneStats> = Vec::new();
        loop {
            let after = all.last().map(|lane| (lane.streamlet, lane.lane));
            let page = self.client.call(&StreamStats { stream, streamlets: Vec::new(), after, limit: 0 }).await?;
            let more = page.more && !page.lanes.is_empty();
            all.extend(page.lanes);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Where in a lane something is.
    pub async fn lookup(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        lane: LaneId,
        at: Start,
    ) -> Result<LookupResult, ClientError> {
        self.client.call(&Lookup { stream, streamlet, lane, at }).await
    }

    /// The groups of a streamlet, in the order of their ids.
    pub async fn groups(&self, stream: StreamId, streamlet: StreamletId) -> Result<Vec<GroupInfo>, ClientError> {
        let mut all: Vec<GroupInfo> = Vec::new();
        loop {
            let after = all.last().map_or(GroupId::NONE, |group| group.group);
            let page = self.client.call(&AvailableGroups { stream, streamlet, after, limit: 0 }).await?;
            let more = page.more && !page.groups.is_empty();
            all.extend(page.groups);
            if !more {
                return Ok(all);
            }
        }
    }

    /// The segments of a group, in their order.
    pub async fn segments(
        &self,
        stream: StreamId,
        streamlet: StreamletId,
        group: GroupId,
    ) -> Result<Vec<SegmentInfo>, ClientError> {
        let mut all: Vec<SegmentInfo> = Vec::new();
        loop {
            let after = all.last().map(|segment| segment.index);
            let page = self.client.call(&AvailableSegments { stream, streamlet, group, after, limit: 0 }).await?;
            let more = page.more && !page.segments.is_empty();
            all.extend(page.segments);
            if !more {
                return Ok(all);
            }
        }
    }

    /// Applications of a stream, or of all streams.
    pub async fn applications(&self, stream: Option<StreamId>) -> Result<Vec<ApplicationSummary>, ClientError> {
        Ok(self.client.call(&ListApplications { stream }).await?.applications)
    }

    /// An application's members, leases and lag.
    pub async fn application(&self, stream: StreamId, name: &str) -> Result<ApplicationDescription, ClientError> {
        self.client.call(&DescribeApplication { application: name.into(), stream }).await
    }

    /// How far an application has read.
    pub async fn offsets(&self, stream: StreamId, application: &str) -> Result<CommittedOffsets, ClientError> {
        let application = application.into();
        self.client.call(&FetchOffsets { application, stream, streamlets: Vec::new() }).await
    }

    /// Sets how far an application has read; it must have no members. `dry_run` only tells what would be set.
    pub async fn reset_offsets(
        &self,
        stream: StreamId,
        application: &str,
        streamlets: Vec<StreamletId>,
        to: Start,
        dry_run: bool,
    ) -> Result<CommittedOffsets, ClientError> {
        let application = application.into();
        self.client.call(&ResetOffsets { application, stream, streamlets, to, dry_run }).await
    }

    /// Forgets an application and what it has read; it must have no members.
    pub async fn delete_application(&self, stream: StreamId, name: &str) -> Result<(), ClientError> {
        self.client.call(&DeleteApplication { application: name.into(), stream }).await.map(drop)
    }

    /// How the cluster is, as the node knows it; one that is alone answers without nodes.
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, ClientError> {
        self.client.call(&DescribeCluster).await
    }

    /// How the node is.
    pub async fn node_status(&self) -> Result<NodeStatusResponse, ClientError> {
        self.client.call(&NodeStatus).await
    }
}
