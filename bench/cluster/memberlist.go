package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/memberlist"
)

// memberlistCluster is the peer: members in LAN defaults, one port each, values by user broadcasts.
type memberlistCluster struct {
	nodes []*memberlistNode
}

type memberlistNode struct {
	list  *memberlist.Memberlist
	queue *memberlist.TransmitLimitedQueue

	mutex sync.Mutex
	seen  map[string]bool
}

const memberlistPort = 23000

func (m *memberlistCluster) start(n int) error {
	for i := range n {
		node := &memberlistNode{seen: make(map[string]bool)}
		config := memberlist.DefaultLANConfig()
		config.Name = fmt.Sprintf("m%d", i)
		config.BindAddr, config.AdvertiseAddr = "127.0.0.1", "127.0.0.1"
		config.BindPort, config.AdvertisePort = memberlistPort+i, memberlistPort+i
		config.LogOutput = io.Discard
		config.Delegate = node
		list, err := memberlist.Create(config)
		if err != nil {
			return err
		}
		node.list = list
		node.queue = &memberlist.TransmitLimitedQueue{NumNodes: list.NumMembers, RetransmitMult: config.RetransmitMult}
		m.nodes = append(m.nodes, node)
	}
	return nil
}

func (m *memberlistCluster) join() {
	for _, node := range m.nodes[1:] {
		go node.list.Join([]string{fmt.Sprintf("127.0.0.1:%d", memberlistPort)})
	}
}

func (m *memberlistCluster) full(i, n int) bool { return m.nodes[i].list.NumMembers() == n }

type broadcast []byte

func (b broadcast) Invalidates(memberlist.Broadcast) bool { return false }
func (b broadcast) Message() []byte                       { return b }
func (b broadcast) Finished()                             {}

func (m *memberlistCluster) write(i int, name string, size int) error {
	message := make([]byte, size)
	copy(message, name)
	m.nodes[i].NotifyMsg(message)
	return nil
}

// NotifyMsg takes a value and passes it on the first time it is seen.
func (n *memberlistNode) NotifyMsg(message []byte) {
	end := 0
	for end < len(message) && message[end] != 0 {
		end++
	}
	name := string(message[:end])
	n.mutex.Lock()
	defer n.mutex.Unlock()
	if n.seen[name] || n.queue == nil {
		return
	}
	n.seen[name] = true
	n.queue.QueueBroadcast(broadcast(append([]byte(nil), message...)))
}

// NodeMeta, GetBroadcasts, LocalState and MergeRemoteState complete memberlist's delegate.
func (n *memberlistNode) NodeMeta(int) []byte { return nil }
func (n *memberlistNode) GetBroadcasts(overhead, limit int) [][]byte {
	if n.queue == nil {
		return nil
	}
	return n.queue.GetBroadcasts(overhead, limit)
}
func (n *memberlistNode) LocalState(bool) []byte        { return nil }
func (n *memberlistNode) MergeRemoteState([]byte, bool) {}

func (m *memberlistCluster) has(i int, name string) bool {
	node := m.nodes[i]
	node.mutex.Lock()
	defer node.mutex.Unlock()
	return node.seen[name]
}

func (m *memberlistCluster) kill(i int) { m.nodes[i].list.Shutdown() }

func (m *memberlistCluster) knowsDead(i, victim int) bool {
	name := fmt.Sprintf("m%d", victim)
	for _, node := range m.nodes[i].list.Members() {
		if node.Name == name {
			return false
		}
	}
	return true
}

func (m *memberlistCluster) stop() {
	for _, node := range m.nodes {
		node.list.Shutdown()
	}
}
