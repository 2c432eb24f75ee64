import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Properties;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/** Producer of Avro records: broker, registry, topic, schema's file, file of rows of numbers. */
class Produce {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("schema.registry.url", args[1]);
        settings.put("compression.type", "zstd");
        settings.put("linger.ms", "50");
        settings.put("key.serializer", "org.apache.kafka.common.serialization.StringSerializer");
        settings.put("value.serializer", "io.confluent.kafka.serializers.KafkaAvroSerializer");
        Schema schema = new Schema.Parser().parse(Path.of(args[3]).toFile());
        List<Schema.Field> fields = schema.getFields();
        int sent = 0;
        try (KafkaProducer<String, Object> producer = new KafkaProducer<>(settings)) {
            for (String line : Files.readAllLines(Path.of(args[4]))) {
                String[] numbers = line.split(" ");
                GenericData.Record record = new GenericData.Record(schema);
                for (int i = 0; i < numbers.length; i++) {
                    record.put(fields.get(i).name(), Double.valueOf(numbers[i]));
                }
                producer.send(new ProducerRecord<>(args[2], sent++ % 2, null, record));
            }
        }
    }
}
