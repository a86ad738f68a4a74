copy (select {projection} from {stage} s where s._modak_set = -1 order by {order}) to stdout with (format csv);
