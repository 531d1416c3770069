package cell

import "fmt"

func (c *Cell) Debug() string {
	return fmt.Sprintf("alive=%d %+v members=%d guests=%d wanted=%d sess=%+v gossip=%+v", c.AliveCount(), c.counters, c.members.Len(), len(c.guests.list), len(c.sessionsWanted), c.sessions.Stats(), c.gossip.Stats())
}
