package daemon

import (
	"colloid.net/meshd/cell"
	"colloid.net/meshd/storage"
)

// store makes a storage.Directory a cell.Storage.
type store struct{ *storage.Directory }

// SaveCluster implements cell.Storage.
func (s store) SaveCluster(ticket uint64, cluster cell.Cluster) {
	s.Directory.SaveCluster(ticket, storage.Cluster{Key: cluster.Key, Joined: cluster.Joined})
}
