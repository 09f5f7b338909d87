//go:build ignore

// Makes random device slices and claims, asks upstream's structured allocator what it would allocate from them on one
// node, and writes cases with its answers, one JSON object a line. Run it in a module that requires
// k8s.io/dynamic-resource-allocation v0.37.0:
//
//	go run allocations.go 300 > allocations.jsonl
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"strconv"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

type fact struct {
	Node        *v1.Node                       `json:"node"`
	Classes     []*resourceapi.DeviceClass     `json:"classes"`
	Slices      []*resourceapi.ResourceSlice   `json:"slices"`
	Taken       *resourceapi.ResourceClaim     `json:"taken"`
	Claims      []*resourceapi.ResourceClaim   `json:"claims"`
	Allocations []resourceapi.AllocationResult `json:"allocations"`
	Error       string                         `json:"error,omitempty"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("class %q not found", name)
}

type maker struct{ *rand.Rand }

func (r maker) one(of ...string) string { return of[r.Intn(len(of))] }
func (r maker) in(n int) bool           { return r.Intn(n) == 0 }

func selectors(expressions ...string) []resourceapi.DeviceSelector {
	var all []resourceapi.DeviceSelector
	for _, e := range expressions {
		all = append(all, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return all
}

func (r maker) device(name string, counters, shared bool) resourceapi.Device {
	d := resourceapi.Device{
		Name: name,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"model": {StringValue: ptr.To(r.one("small", "large"))},
			"numa":  {IntValue: ptr.To(int64(r.Intn(2)))},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse(r.one("8Gi", "40Gi", "80Gi"))},
		},
	}
	if r.in(6) {
		d.Taints = []resourceapi.DeviceTaint{{Key: "broken", Value: "yes", Effect: resourceapi.DeviceTaintEffect(r.one("NoSchedule", "NoExecute", "None"))}}
	}
	if counters {
		d.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "set", Counters: map[string]resourceapi.Counter{
			"memory": {Value: resource.MustParse(r.one("10Gi", "20Gi", "40Gi"))}}}}
	}
	if shared {
		d.AllowMultipleAllocations = ptr.To(true)
		capacity := d.Capacity["memory"]
		switch r.Intn(3) {
		case 0:
			capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("4Gi")),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("2Gi")), Step: ptr.To(resource.MustParse("2Gi"))}}
		case 1:
			capacity.RequestPolicy = &resourceapi.CapacityRequestPolicy{Default: ptr.To(resource.MustParse("4Gi")),
				ValidValues: []resource.Quantity{resource.MustParse("4Gi"), resource.MustParse("8Gi"), resource.MustParse("32Gi")}}
		}
		d.Capacity["memory"] = capacity
	}
	if r.in(10) {
		d.BindingConditions = []string{"ready"}
		d.BindsToNode = ptr.To(r.in(2))
	}
	return d
}

func (r maker) slices() []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for p := 0; p < 1+r.Intn(3); p++ {
		driver := r.one("a.example.com", "b.example.com")
		count := 1 + r.Intn(2)
		counters, shared := r.in(4), r.in(4)
		total := int64(count)
		if counters {
			total++
		}
		if r.in(12) {
			total++ // Incomplete.
		}
		pool := resourceapi.ResourcePool{Name: fmt.Sprintf("pool-%d", p), Generation: 1, ResourceSliceCount: total}
		place := func(spec *resourceapi.ResourceSliceSpec) {
			switch r.Intn(4) {
			case 0:
				spec.AllNodes = ptr.To(true)
			case 1:
				zone := r.one("z1", "z1", "z2")
				spec.NodeSelector = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
					{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{zone}}}}}}
			default:
				spec.NodeName = ptr.To(r.one("n1", "n1", "n1", "n2"))
			}
		}
		for s := 0; s < count; s++ {
			slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%d-%d", p, s)},
				Spec: resourceapi.ResourceSliceSpec{Driver: driver, Pool: pool}}
			place(&slice.Spec)
			for d := 0; d < 1+r.Intn(4); d++ {
				slice.Spec.Devices = append(slice.Spec.Devices, r.device(fmt.Sprintf("dev-%d-%d", s, d), counters, shared && r.in(2)))
			}
			all = append(all, slice)
		}
		if counters {
			slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%d-counters", p)},
				Spec: resourceapi.ResourceSliceSpec{Driver: driver, Pool: pool, SharedCounters: []resourceapi.CounterSet{{Name: "set",
					Counters: map[string]resourceapi.Counter{"memory": {Value: resource.MustParse("60Gi")}}}}}}
			place(&slice.Spec)
			all = append(all, slice)
		}
	}
	return all
}

func (r maker) expressions() []resourceapi.DeviceSelector {
	switch r.Intn(5) {
	case 0:
		return selectors("device.driver == 'a.example.com'")
	case 1:
		return selectors("device.attributes[device.driver].model == 'large'")
	case 2:
		return selectors("device.capacity[device.driver].memory.compareTo(quantity('40Gi')) >= 0")
	}
	return nil
}

func (r maker) tolerations() []resourceapi.DeviceToleration {
	if r.in(3) {
		return []resourceapi.DeviceToleration{{Key: "broken", Operator: resourceapi.DeviceTolerationOpExists}}
	}
	return nil
}

func (r maker) claim(name string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}}
	devices := &claim.Spec.Devices
	var names []string
	for i := 0; i < 1+r.Intn(3); i++ {
		request := resourceapi.DeviceRequest{Name: "r" + strconv.Itoa(i)}
		names = append(names, request.Name)
		mode, count := resourceapi.DeviceAllocationModeExactCount, int64(1+r.Intn(2))
		if r.in(6) {
			mode, count = resourceapi.DeviceAllocationModeAll, 0
		}
		var capacity *resourceapi.CapacityRequirements
		if r.in(4) {
			capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{
				"memory": resource.MustParse(r.one("3Gi", "8Gi", "30Gi", "50Gi"))}}
		}
		if r.in(4) {
			for s := 0; s < 2; s++ {
				request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
					Name: "s" + strconv.Itoa(s), DeviceClassName: r.one("any", "large"), Selectors: r.expressions(),
					AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(1 + r.Intn(3)),
					Tolerations: r.tolerations(), Capacity: capacity})
			}
		} else {
			request.Exactly = &resourceapi.ExactDeviceRequest{DeviceClassName: r.one("any", "any", "large"), Selectors: r.expressions(),
				AllocationMode: mode, Count: count, Tolerations: r.tolerations(), Capacity: capacity}
			if r.in(10) {
				request.Exactly.AdminAccess = ptr.To(true)
			}
		}
		devices.Requests = append(devices.Requests, request)
	}
	if r.in(4) {
		attribute := resourceapi.FullyQualifiedName(r.one("a.example.com/numa", "a.example.com/model"))
		constraint := resourceapi.DeviceConstraint{MatchAttribute: &attribute}
		if r.in(3) {
			constraint = resourceapi.DeviceConstraint{DistinctAttribute: &attribute}
		}
		if r.in(2) {
			constraint.Requests = names[:1+r.Intn(len(names))]
		}
		devices.Constraints = append(devices.Constraints, constraint)
	}
	if r.in(4) {
		devices.Config = append(devices.Config, resourceapi.DeviceClaimConfiguration{Requests: names[:1]})
		devices.Config[0].Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: "a.example.com"}
		devices.Config[0].Opaque.Parameters.Raw = []byte(`{"of":"claim"}`)
	}
	return claim
}

func (r maker) fact() fact {
	f := fact{Node: &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "z1"}}}, Slices: r.slices()}
	large := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Spec: resourceapi.DeviceClassSpec{
		Selectors: selectors("device.attributes[device.driver].model == 'large'")}}
	large.Spec.Config = []resourceapi.DeviceClassConfiguration{{}}
	large.Spec.Config[0].Opaque = &resourceapi.OpaqueDeviceConfiguration{Driver: "b.example.com"}
	large.Spec.Config[0].Opaque.Parameters.Raw = []byte(`{"of":"class"}`)
	f.Classes = []*resourceapi.DeviceClass{{ObjectMeta: metav1.ObjectMeta{Name: "any"}}, large}
	taken := sets.New[structured.DeviceID]()
	f.Taken = &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "taken", Namespace: "ns", UID: "taken"}}
	f.Taken.Status.Allocation = &resourceapi.AllocationResult{}
	for _, slice := range f.Slices {
		for _, d := range slice.Spec.Devices {
			if r.in(8) && !ptr.Deref(d.AllowMultipleAllocations, false) {
				taken.Insert(structured.MakeDeviceID(slice.Spec.Driver, slice.Spec.Pool.Name, d.Name))
				f.Taken.Status.Allocation.Devices.Results = append(f.Taken.Status.Allocation.Devices.Results,
					resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: slice.Spec.Driver, Pool: slice.Spec.Pool.Name, Device: d.Name})
			}
		}
	}
	for i := 0; i < 1+r.Intn(2); i++ {
		f.Claims = append(f.Claims, r.claim("c"+strconv.Itoa(i)))
	}
	features := structured.Features{AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true,
		DeviceBindingAndStatus: true, ConsumableCapacity: true}
	state := structured.AllocatedState{AllocatedDevices: taken, AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection()}
	cache := cel.NewCache(10, cel.Features{EnableConsumableCapacity: true})
	allocator, err := structured.NewAllocator(context.Background(), features, state, classes(f.Classes), f.Slices, cache)
	if err == nil {
		f.Allocations, err = allocator.Allocate(context.Background(), f.Node, f.Claims)
	}
	if err != nil {
		f.Error = err.Error()
	}
	return f
}

func main() {
	n := 300
	if len(os.Args) > 1 {
		n, _ = strconv.Atoi(os.Args[1])
	}
	out := json.NewEncoder(os.Stdout)
	for i, written := 0, 0; written < n; i++ {
		f := maker{rand.New(rand.NewSource(int64(i)))}.fact()
		// Three of four cases without enough devices are left out: most are.
		if f.Allocations == nil && f.Error == "" && i%4 != 0 {
			continue
		}
		written++
		if err := out.Encode(f); err != nil {
			panic(err)
		}
	}
}
